// Thumbnails of taught pictures. They stay in this browser (IndexedDB), under the names of the model and the class.
import { toFile } from "./files.js";

const STORE = "thumbnails";

const database = new Promise((resolve) => {
  const opening = indexedDB.open("adagauss", 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
  opening.onsuccess = () => resolve(opening.result);
  opening.onerror = () => resolve(null); // some private windows have no database: thumbnails end with the tab
});

async function run(action) {
  const found = await database;
  if (!found) return undefined;
  return new Promise((resolve) => {
    const pending = action(found.transaction(STORE, "readwrite").objectStore(STORE));
    pending.onsuccess = () => resolve(pending.result);
    pending.onerror = () => resolve(undefined); // for example, the disk is full
  });
}

// The stored thumbnails of a model: [[label, files], ...].
export async function load(model) {
  const all = IDBKeyRange.bound([model], [model, []]);
  const [keys, values] = await Promise.all([run((store) => store.getAllKeys(all)), run((store) => store.getAll(all))]);
  return (keys ?? []).map(([, label], place) => [label, values[place]]);
}

// Replaces the thumbnails of a class; without pictures they are removed.
export async function save(model, label, taught) {
  if (!taught.length) return run((store) => store.delete([model, label]));
  await Promise.all(taught.map((one) => one.draw()));
  const files = await Promise.all(taught.map((one) => toFile(one.canvas, one.file.name)));
  return run((store) => store.put(files, [model, label]));
}
