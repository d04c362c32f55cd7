"use strict";
const slider = document.getElementById("delta");
if (slider) {
  const rows = JSON.parse(slider.dataset.choices);
  const shown = document.getElementById("what-if");
  const show = () => {
    const [delta, epsilon] = rows[Number(slider.value)];
    shown.textContent = `At delta ${delta}, epsilon is at most ${epsilon}.`;
    slider.setAttribute("aria-valuetext", shown.textContent);
  };
  slider.addEventListener("input", show);
  slider.closest(".what-if").hidden = false;
  show();
}
