"use strict";
// Routing maps: pointing at a task or a block lights the routes of its tasks; a click keeps them lit.
for (const map of document.querySelectorAll(".map")) {
  const parts = [...map.querySelectorAll("[data-tasks]")];
  const tasksOf = (part) => part.dataset.tasks.split(" ").filter(Boolean);
  let kept = "";
  const light = (tasks) => {
    map.classList.toggle("lit", tasks !== "");
    const lit = new Set(tasks.split(" "));
    for (const part of parts) part.classList.toggle("on", tasksOf(part).some((task) => lit.has(task)));
  };
  const at = (event) => event.target.closest("[data-tasks]")?.dataset.tasks ?? "";
  map.addEventListener("pointerover", (event) => light(at(event) || kept));
  map.addEventListener("pointerleave", () => light(kept));
  map.addEventListener("click", (event) => { kept = kept === at(event) ? "" : at(event); light(kept); });
}
(() => {
  const source = document.getElementById("policies");
  if (!source) return;
  const { palette, runs } = JSON.parse(source.textContent);
  const byId = (id) => document.getElementById(id);
  const [runBox, time, play, step, depths] = ["run", "time", "play", "step", "depths"].map(byId);
  let levels = new Uint8Array();
  let canvases = [];
  let timer = null;

  const colour = (level) => `rgb(${palette[level].join(" ")})`;

  function open() {
    const run = runs[runBox.value];
    levels = Uint8Array.from(atob(run.levels), (c) => c.charCodeAt(0));
    byId("measure").textContent = run.measure;
    time.max = run.steps.length - 1;
    time.value = time.max;
    canvases = run.actions.map((actions, depth) => {
      const canvas = document.createElement("canvas");
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `policies at ${run.layers[depth]}: a row per task, a column per block`);
      return canvas;
    });
    depths.replaceChildren(...canvases.map((canvas, depth) => {
      const figure = document.createElement("figure");
      const caption = document.createElement("figcaption");
      caption.textContent = `${run.layers[depth]}: tasks by function blocks`;
      figure.append(caption, canvas);
      return figure;
    }));
    draw();
  }

  function drawDepth(canvas, depth, run) {
    const tasks = run.tasks, actions = run.actions[depth];
    const pen = canvas.getContext("2d");
    const most = Math.floor(640 / Math.max(tasks.length, actions.length));
    const named = most >= 8;
    const font = `${Math.min(12, Math.max(8, most - 2))}px system-ui, sans-serif`;
    pen.font = font;
    const left = named ? Math.ceil(Math.max(...tasks.map((name) => pen.measureText(name).width))) + 8 : 4;
    const room = Math.floor((depths.clientWidth - left) / actions.length);  // on a phone
    const cell = Math.max(named ? 9 : 4, Math.min(18, most, room));
    const width = left + cell * actions.length, height = cell * tasks.length + 18;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    pen.scale(ratio, ratio);
    pen.font = font;
    pen.fillStyle = getComputedStyle(document.body).color;
    pen.textBaseline = "middle";
    const size = tasks.length * run.width;
    const start = (Number(time.value) * run.actions.length + depth) * size;
    tasks.forEach((name, task) => {
      pen.textAlign = "right";
      if (named) pen.fillText(name, left - 6, (task + 0.5) * cell);
    });
    pen.textAlign = "center";
    const widest = Math.max(...actions.map((name) => pen.measureText(name).width)) + 4;
    const every = Math.ceil(widest / cell);
    actions.forEach((name, action) => {
      if (action % every === 0) pen.fillText(name, left + (action + 0.5) * cell, tasks.length * cell + 10);
    });
    for (let task = 0; task < tasks.length; task++) {
      for (let action = 0; action < actions.length; action++) {
        pen.fillStyle = colour(levels[start + task * run.width + action]);
        pen.fillRect(left + action * cell, task * cell, cell, cell);
      }
    }
  }

  function draw() {
    const run = runs[runBox.value];
    const at = run.steps[time.value];
    step.textContent = `optimizer step ${at}`;
    time.setAttribute("aria-valuetext", `optimizer step ${at}`);
    canvases.forEach((canvas, depth) => drawDepth(canvas, depth, run));
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }

  play.addEventListener("click", () => {
    if (timer !== null) return stop();
    if (time.value === time.max) time.value = 0;
    play.textContent = "Pause";
    timer = setInterval(() => {
      time.stepUp();
      draw();
      if (time.value === time.max) stop();
    }, 150);
    draw();
  });
  time.addEventListener("input", () => { stop(); draw(); });
  runBox.addEventListener("change", () => { stop(); open(); });
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  const scale = byId("scale").getContext("2d");
  palette.forEach((_, level) => {
    scale.fillStyle = colour(level);
    scale.fillRect(level, 0, 1, 12);
  });
  open();
})();
