// The download of the model, and the programs that use it.
import { download } from "./api.js";
import { button } from "./answers.js";
import { attempt } from "./dialogs.js";

const part = (name) => document.getElementById(name);
let name = "";

export function setup() {
  part("download-model").addEventListener("click", async () => {
    part("download-model").disabled = true;
    await attempt(() => download("/api/download/model", `${name}.safetensors`));
    part("download-model").disabled = false;
  });
  for (const code of document.querySelectorAll("#use pre")) {
    // Browsers offer the clipboard only over HTTPS and on this machine.
    if (navigator.clipboard) code.after(button("Copy", (event) => copy(code, event.target)));
  }
  for (const place of document.querySelectorAll(".server-address")) place.textContent = location.origin;
}

export function show(model) {
  part("use").hidden = !model.classes.length;
  if (model.name === name) return;
  name = model.name;
  for (const place of document.querySelectorAll(".file-stem")) place.textContent = name;
}

async function copy(code, pressed) {
  await attempt(() => navigator.clipboard.writeText(code.textContent));
  pressed.textContent = "Copied";
  setTimeout(() => (pressed.textContent = "Copy"), 2000);
}
