// Shows the claims that the two menus and the words ask for, and the claim that the address names.
"use strict";
(() => {
  const cards = [...document.querySelectorAll(".claim")];
  const tiles = new Map([...document.querySelectorAll(".tiles a")].map((tile) => [tile.getAttribute("href").slice(1), tile]));
  const paper = document.getElementById("filter-paper");
  const verdict = document.getElementById("filter-verdict");
  const words = document.getElementById("filter-words");
  const shown = document.getElementById("shown");

  function filter() {
    const wanted = words.value.trim().toLowerCase();
    let count = 0;
    for (const card of cards) {
      const fits =
        (!paper.value || card.dataset.paper === paper.value) &&
        (!verdict.value || card.dataset.verdict === verdict.value) &&
        (!wanted || card.textContent.toLowerCase().includes(wanted) || card.id.includes(wanted));
      card.hidden = !fits;
      tiles.get(card.id)?.classList.toggle("away", !fits);
      count += fits;
    }
    for (const heading of document.querySelectorAll("[data-heads]")) {
      heading.hidden = !cards.some((card) => !card.hidden && card.dataset.group.startsWith(heading.dataset.heads));
    }
    shown.textContent = `${count} of ${cards.length} shown`;
  }

  function visit() {
    const card = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!card?.hidden) return;
    paper.value = verdict.value = words.value = "";
    filter();
    card.scrollIntoView();
  }

  for (const control of [paper, verdict, words]) control.addEventListener("input", filter);
  window.addEventListener("hashchange", visit);
  filter();
})();
