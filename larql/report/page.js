"use strict";
// Draws the plots of the page, and moves their lines to the position that is chosen.
const report = JSON.parse(document.getElementById("report-data").textContent);
const choice = document.getElementById("position");

for (const [place, figure] of Object.entries(report.figures)) {
  Plotly.newPlot(place, figure.data, figure.layout, report.config);
}

function show(row) {
  for (const [place, values] of Object.entries(report.moving)) {
    const lines = values[row];
    Plotly.restyle(place, { y: lines }, lines.map((_, number) => number));
  }
}

if (choice) {
  choice.addEventListener("change", () => show(choice.selectedIndex));
  const lens = document.getElementById("lens");
  if (lens) {
    lens.on("plotly_click", (event) => {
      choice.selectedIndex = event.points[0].x;
      show(choice.selectedIndex);
    });
  }
}
