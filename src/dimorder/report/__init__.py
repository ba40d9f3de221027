"""Render plans, comparisons, inspections and benches as pages, in self-contained HTML of the same parts."""
