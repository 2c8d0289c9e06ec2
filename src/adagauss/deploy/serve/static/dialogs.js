// Dialogs and messages. All text is set as text, never as markup.
const part = (name) => document.getElementById(name);

// Opens a dialog with an optional text field, which may suggest options, and check box; resolves to null if cancelled.
export function ask({ title, text = "", input = null, options = [], secret = false, check = "", yes = "OK" }) {
  const dialog = part("dialog");
  part("dialog-title").textContent = title;
  part("dialog-text").textContent = text;
  part("dialog-text").hidden = !text;
  const field = part("dialog-input");
  field.hidden = input === null;
  field.type = secret ? "password" : "text";
  field.required = input !== null;
  field.value = input ?? "";
  part("dialog-options").replaceChildren(...options.map((name) => new Option(name)));
  part("dialog-check-label").hidden = !check;
  part("dialog-check").checked = false;
  part("dialog-check-text").textContent = check;
  part("dialog-yes").textContent = yes;
  dialog.returnValue = "";
  dialog.showModal();
  if (input !== null) field.select();
  else part("dialog-yes").focus();
  field.onkeydown = (event) => {
    if (event.key === "Enter" && field.value.trim()) {
      event.preventDefault();
      dialog.close("yes");
    }
  };
  return new Promise((resolve) => {
    dialog.addEventListener(
      "close",
      () => {
        const answer = { input: field.value, check: part("dialog-check").checked };
        field.value = "";
        resolve(dialog.returnValue === "yes" ? answer : null);
      },
      { once: true },
    );
  });
}

let hiding = 0;

export function say(text) {
  const toast = part("toast");
  toast.textContent = text;
  toast.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => (toast.hidden = true), Math.max(7000, 90 * text.length)); // time to read it
}

// Runs an action and shows its error message if it fails.
export async function attempt(action) {
  try {
    return await action();
  } catch (error) {
    say(error.message);
    return null;
  }
}
