// Zoom, search and details of the graph of a plan. Without this script the graph is a still picture.
for (const explorer of document.querySelectorAll(".explorer")) {
  const svg = explorer.querySelector("svg.graph");
  const all = svg.getAttribute("viewBox").split(" ").map(Number);
  const nodes = [...svg.querySelectorAll(".node")];
  const badges = [...svg.querySelectorAll(".badge")];
  const hits = explorer.querySelector(".hits");
  const place = explorer.querySelector(".place");
  const find = explorer.querySelector(".find");
  let view = all.slice();
  let found = [];
  let hit = -1;
  let conversion = -1;

  const show = (next) => {
    view = next;
    svg.setAttribute("viewBox", view.join(" "));
  };

  // The units of the picture per pixel: the picture keeps its shape, so one side may have a margin.
  const scale = () => Math.max(view[2] / svg.clientWidth, view[3] / svg.clientHeight);

  const at = (event) => {
    const box = svg.getBoundingClientRect();
    const unit = scale();
    return [
      view[0] + view[2] / 2 + (event.clientX - box.left - box.width / 2) * unit,
      view[1] + view[3] / 2 + (event.clientY - box.top - box.height / 2) * unit,
    ];
  };

  const zoom = (factor, x = view[0] + view[2] / 2, y = view[1] + view[3] / 2) => {
    const width = Math.min(Math.max(view[2] * factor, 120), all[2] * 2);
    const by = width / view[2];
    show([x - (x - view[0]) * by, y - (y - view[1]) * by, width, view[3] * by]);
  };

  // Look closely at one operator or conversion, and show its details.
  const choose = (element, move) => {
    for (const chosen of svg.querySelectorAll(".chosen")) chosen.classList.remove("chosen");
    for (const about of explorer.querySelectorAll(".about")) about.hidden = true;
    explorer.querySelector(".hint").hidden = true;
    element.classList.add("chosen");
    document.getElementById(element.dataset.about).hidden = false;
    if (move) {
      const { e: x, f: y } = element.transform.baseVal.consolidate().matrix;
      const width = Math.min(view[2], 900);
      const height = (width * svg.clientHeight) / svg.clientWidth;
      show([x - width / 2, y - height / 2, width, height]);
    }
  };

  const search = () => {
    const words = find.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const text = (node) => document.getElementById(node.dataset.about).textContent.toLowerCase();
    found = words.length ? nodes.filter((node) => words.every((word) => text(node).includes(word))) : [];
    hit = -1;
    svg.classList.toggle("searched", words.length > 0);
    for (const node of nodes) node.classList.toggle("hit", found.includes(node));
    hits.textContent = words.length ? `${found.length} of ${nodes.length}` : "";
  };

  find.addEventListener("input", search);
  find.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !found.length) return;
    hit = (hit + (event.shiftKey ? found.length - 1 : 1)) % found.length;
    hits.textContent = `${hit + 1} of ${found.length}`;
    choose(found[hit], true);
  });

  for (const button of explorer.querySelectorAll("[data-zoom]")) {
    const factor = Number(button.dataset.zoom);
    button.addEventListener("click", () => (factor ? zoom(factor) : show(all.slice())));
  }
  for (const button of explorer.querySelectorAll("[data-step]")) {
    button.addEventListener("click", () => {
      const numbers = [...new Set(badges.map((badge) => badge.dataset.conversion))].sort((a, b) => a - b);
      if (!numbers.length) return;
      const step = Number(button.dataset.step);
      conversion = (Math.max(conversion, step > 0 ? -1 : 0) + step + numbers.length) % numbers.length;
      place.textContent = `${conversion + 1} of ${numbers.length}`;
      choose(badges.find((badge) => badge.dataset.conversion === numbers[conversion]), true);
    });
  }

  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.15 : 0.87, ...at(event));
  }, { passive: false });
  svg.addEventListener("keydown", (event) => {
    const factor = { "+": 0.7, "=": 0.7, "-": 1.43 }[event.key];
    if (factor) zoom(factor);
    if (event.key === "0") show(all.slice());
  });

  const pressed = new Map(); // pointers: one drags, two zoom
  let moved = false;
  svg.addEventListener("pointerdown", (event) => {
    pressed.set(event.pointerId, event);
    moved = false;
  });
  svg.addEventListener("pointermove", (event) => {
    const before = pressed.get(event.pointerId);
    if (!before) return;
    const [x, y] = [event.clientX - before.clientX, event.clientY - before.clientY];
    if (!moved && Math.hypot(x, y) < 4) return;
    moved = true;
    svg.setPointerCapture(event.pointerId);
    svg.classList.add("dragged");
    const other = [...pressed.values()].find((each) => each.pointerId !== event.pointerId);
    if (other) {
      const apart = (each) => Math.hypot(each.clientX - other.clientX, each.clientY - other.clientY) || 1;
      zoom(apart(before) / apart(event), ...at(other));
    } else {
      show([view[0] - x * scale(), view[1] - y * scale(), view[2], view[3]]);
    }
    pressed.set(event.pointerId, event);
  });
  for (const end of ["pointerup", "pointercancel"]) {
    svg.addEventListener(end, (event) => {
      pressed.delete(event.pointerId);
      svg.classList.remove("dragged");
    });
  }
  svg.addEventListener("click", (event) => {
    const element = event.target.closest("[data-about]");
    if (element && !moved) choose(element, false);
    moved = false; // a browser sends a click after a drag too
  });
}
