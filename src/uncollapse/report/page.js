// Draws the charts of a page and links them: selecting a layer, head or metric anywhere updates all charts.
"use strict";
(() => {
  const read = (id, reviver) => JSON.parse(document.getElementById(id).textContent, reviver);
  const tables = read("tables");
  const charts = read("charts", (key, value) => (key === "data" && value.table ? tables[value.table] : value));
  const { choice, configs } = read("settings");
  const darkness = matchMedia("(prefers-color-scheme: dark)");
  const menus = [...document.querySelectorAll("select[data-choice]")];
  let drawn = [];
  let drawing = Promise.resolve();

  // A chart follows the choices that it has parameters for.
  const parts = (spec) => (spec.params ?? []).filter((parameter) => parameter.name in choice);

  async function draw() {
    choice.dark = darkness.matches;
    drawn.forEach((chart) => chart.finalize());
    const scheme = choice.dark ? "dark" : "light";
    drawn = [];
    for (const [name, spec] of Object.entries(charts)) drawn.push(await drawOne(name, spec, scheme));
    document.documentElement.dataset.drawn = scheme;
  }

  async function drawOne(name, spec, scheme) {
    parts(spec).forEach((parameter) => { parameter.value = choice[parameter.name]; });
    const chart = await vegaEmbed(`#${name}`, spec, {
      config: configs[scheme],
      renderer: "svg",
      actions: { export: true, source: false, compiled: false, editor: false },
      downloadFileName: name,
      tooltip: { theme: scheme },
    });
    chart.names = parts(spec).map((parameter) => parameter.name);
    chart.view.addEventListener("click", (_event, item) => {
      const { layer, head } = item?.datum ?? {};
      if (chart.names.includes("layer") && layer) choose(head ? { layer, head } : { layer });
    });
    return chart;
  }

  function choose(change) {
    Object.assign(choice, change);
    showMenus();
    for (const { view, names } of drawn) {
      const changed = names.filter((name) => name in change);
      changed.forEach((name) => view.signal(name, choice[name]));
      if (changed.length) view.runAsync();
    }
  }

  function showMenus() {
    for (const menu of menus) {
      menu.value = choice[menu.dataset.choice];
      const words = document.querySelector(`[data-words-of="${menu.dataset.choice}"]`);
      if (words) words.textContent = menu.selectedOptions[0]?.dataset.words ?? "";
    }
  }

  for (const menu of menus) {
    const name = menu.dataset.choice;
    const typed = typeof choice[name] === "number" ? Number : String;
    menu.addEventListener("change", () => choose({ [name]: typed(menu.value) }));
  }
  darkness.addEventListener("change", () => { drawing = drawing.then(draw); });
  showMenus();
  drawing = draw();
})();
