// Check an XNNPACK delegate as executorch/delegate_checks.py and delegate_orders.py do.
#pragma once

#include "argument_checks.h"
#include "program_tables.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace dimorder {

/// The graph of a delegate.
class XnnGraph {
 public:
  /// Read a graph. `bytes` must live as long. Ask for `damage()` before anything else.
  XnnGraph(const uint8_t* bytes, size_t count);

  /// Return why the graph cannot be read, or contradicts itself or the file; "" if it does not.
  ///
  /// A constant that the file lacks is no contradiction; its name is `missing`.
  std::string damage(
      const std::map<std::string_view, uint64_t>& named_data, std::optional<std::string>* missing);

  /// Return why these arguments of a call would end the process; "" if they would not.
  std::string check_arguments(const Plan& plan, const std::vector<int64_t>& arguments);

  /// Return the operators that give wrong numbers for these arguments of a call. Not for programs of dimorder's,
  /// which have softmaxes along channels on purpose.
  std::vector<Misread> misread(const std::vector<const TensorTable*>& arguments);

  bool is_damaged() const {
    return bytes_.is_damaged;
  }

 private:
  using Dims = std::vector<uint64_t>;

  struct Tensor {
    int64_t datatype = 0;
    Dims dims;
    uint64_t constant = 0, external = 0, flags = 0;

    uint64_t bytes() const;
  };

  struct Node {
    const tables::XnnNode* kind;
    FlatTable table;
    std::vector<uint64_t> reads;
    uint64_t gives;
    Dims perm; ///< of a transpose
    bool is_inserted; ///< a transpose that only changes an order
  };

  /// What is known of values for the arguments of a call.
  struct Orders {
    std::set<uint64_t> nhwc;
    std::map<uint64_t, Dims> at_runtime; ///< of values that have other dims at run time
  };

  std::string find_start(const uint8_t* bytes, size_t count);
  std::string read();
  std::string check_constants(
      const std::map<std::string_view, uint64_t>& named_data, std::optional<std::string>* missing);
  std::string check_flow();
  const Tensor& tensor(uint64_t id) const;
  bool is_nhwc(const Node& node, const Orders& orders) const;
  std::optional<Dims> dims_at_runtime(const Node& node, uint64_t moved, const Orders& orders) const;
  std::optional<std::set<size_t>> touched_dims(const Node& node, uint64_t moved, const Orders& orders) const;

  FlatBytes bytes_;
  std::string unreadable_;
  std::map<uint64_t, Tensor> tensors_;
  std::map<uint64_t, uint64_t> needed_; ///< the bytes that values read of each constant
  std::vector<Node> nodes_;
};

} // namespace dimorder
