// Zoom, search and details of graphs. Two graphs side by side move together, and an operator or a conversion is
// chosen in both. Without this script the graphs are still pictures.
for (const explorer of document.querySelectorAll(".explorer")) {
  const pictures = [...explorer.querySelectorAll(".picture")];
  const graphs = pictures.map((picture) => picture.querySelector("svg.graph"));
  const all = graphs[0].getAttribute("viewBox").split(" ").map(Number);
  const nodes = graphs.flatMap((svg) => [...svg.querySelectorAll(".node")]);
  const hits = explorer.querySelector(".hits");
  const place = explorer.querySelector(".place");
  const find = explorer.querySelector(".find");
  let view = all.slice();
  let found = [];
  let hit = -1;
  let step = -1;

  const show = (next) => {
    view = next;
    for (const svg of graphs) svg.setAttribute("viewBox", view.join(" "));
  };

  // The units of a picture per pixel: the picture keeps its shape, so one side may have a margin.
  const scale = () => Math.max(view[2] / graphs[0].clientWidth, view[3] / graphs[0].clientHeight);

  const at = (svg, event) => {
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

  // Look closely at one operator or conversion, and show its details in each picture that has it.
  const choose = (element, move) => {
    for (const picture of pictures) {
      const slot = `[data-slot="${element.dataset.slot}"]`;
      const own = picture.contains(element) ? element : picture.querySelector(slot);
      for (const chosen of picture.querySelectorAll(".chosen")) chosen.classList.remove("chosen");
      for (const about of picture.querySelectorAll(".about")) about.hidden = true;
      const absent = picture.querySelector(".hint");
      absent.hidden = Boolean(own);
      absent.textContent = "Nothing is here in this graph.";
      if (!own) continue;
      own.classList.add("chosen");
      document.getElementById(own.dataset.about).hidden = false;
    }
    if (move) {
      const { e: x, f: y } = element.transform.baseVal.consolidate().matrix;
      const pixels = graphs[0].clientWidth;
      const width = Math.max(Math.min(view[2], 900, 1.2 * pixels), pixels / 1.5);
      const height = (width * graphs[0].clientHeight) / graphs[0].clientWidth;
      show([x - width / 2, y - height / 2, width, height]);
    }
  };

  const bySlot = (elements) => [...new Map(elements.map((each) => [each.dataset.slot, each])).values()];

  const search = () => {
    const words = find.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const text = (node) => document.getElementById(node.dataset.about).textContent.toLowerCase();
    const matches = words.length ? nodes.filter((node) => words.every((word) => text(node).includes(word))) : [];
    found = bySlot(matches);
    hit = -1;
    for (const svg of graphs) svg.classList.toggle("searched", words.length > 0);
    for (const node of nodes) node.classList.toggle("hit", matches.includes(node));
    hits.textContent = words.length ? `${found.length} of ${bySlot(nodes).length}` : "";
  };

  find.addEventListener("input", search);
  find.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !found.length) return;
    hit = (hit + (event.shiftKey ? found.length - 1 : 1)) % found.length;
    hits.textContent = `${hit + 1} of ${found.length}`;
    choose(found[hit], true);
  });

  // Conversions and findings in program order, each once: on the first of its edges, and in one of the pictures.
  const marked = new Map();
  for (const [number, svg] of graphs.entries()) {
    for (const each of svg.querySelectorAll(".badge, .node.conversion, .node.found")) {
      const again = number > 0 && each.classList.contains("shared");
      if (!again && !marked.has(each.dataset.about)) marked.set(each.dataset.about, each);
    }
  }
  const steps = [...marked.values()].sort((a, b) => parseInt(a.dataset.slot) - parseInt(b.dataset.slot));

  for (const button of explorer.querySelectorAll("[data-zoom]")) {
    const factor = Number(button.dataset.zoom);
    button.addEventListener("click", () => (factor ? zoom(factor) : show(all.slice())));
  }
  for (const button of explorer.querySelectorAll("[data-step]")) {
    button.addEventListener("click", () => {
      const by = Number(button.dataset.step);
      step = (Math.max(step, by > 0 ? -1 : 0) + by + steps.length) % steps.length;
      place.textContent = `${step + 1} of ${steps.length}`;
      choose(steps[step], true);
    });
  }

  const pressed = new Map(); // pointers: one drags, two zoom
  let moved = false;
  for (const svg of graphs) {
    svg.addEventListener("wheel", (event) => {
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.15 : 0.87, ...at(svg, event));
    }, { passive: false });
    svg.addEventListener("keydown", (event) => {
      const factor = { "+": 0.7, "=": 0.7, "-": 1.43 }[event.key];
      if (factor) zoom(factor);
      if (event.key === "0") show(all.slice());
    });
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
        zoom(apart(before) / apart(event), ...at(svg, other));
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
}
