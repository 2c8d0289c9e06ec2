// Elements that show the prediction for one picture.
import { tone } from "./classes.js";

export function element(kind, classes, text = "") {
  const made = document.createElement(kind);
  made.className = classes;
  made.textContent = text;
  return made;
}

export function button(text, action) {
  const made = element("button", "plain small", text);
  made.type = "button";
  made.addEventListener("click", action);
  return made;
}

// The predicted class, the name of the file and the most probable classes.
export function answer(prediction, fileName = "") {
  const box = element("div", prediction.unknown ? "muted" : "");
  const verdict = element("div", `verdict ${prediction.label === null ? "tone-none" : tone(prediction.label)}`);
  const label = prediction.problem ? "Unreadable" : prediction.unknown ? "Unknown" : prediction.label;
  verdict.append(element("b", "", label), element("span", "file-name", fileName));
  box.append(verdict, ...prediction.top.map(bar));
  if (prediction.problem) box.append(element("p", "quiet small-text", prediction.problem));
  return box;
}

function bar({ label, probability }) {
  const row = element("div", `bar-row ${tone(label)}`);
  const name = element("span", "label", label);
  name.title = label;
  const track = element("div", "bar");
  const fill = element("div", "fill");
  fill.style.width = `${100 * probability}%`;
  track.append(fill);
  row.append(name, track, element("span", "percent", `${Math.round(100 * probability)} %`));
  return row;
}
