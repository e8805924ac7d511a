"use strict";
/* Everything that a server says is put in as text, never as HTML. The token lies in sessionStorage alone and goes
 * out in a header, so another site cannot make this page, or the browser, act with it. */
const byId = (id) => document.getElementById(id);
const FAILURES_SHOWN = 12, TOKEN = "sluice.token", order = ["failed", "loading", "queued", "ready", "absent"];
const seen = {status: {changes: "off"}, node: null, loads: [], history: {step_seconds: 2, bytes: []}};

/* ---- words ---- */
function make(tag, name, ...children) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...children.filter((child) => child !== undefined && child !== ""));
  return element;
}
function bytes(count) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit++; }
  if (!unit && count === 1) return "1 byte";
  return (unit && count < 100 ? count.toFixed(count < 10 ? 2 : 1) : Math.round(count)) + " " + units[unit];
}
function time(seconds) {
  if (seconds < 60) return Math.round(seconds) + " s";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min";
  if (seconds < 172800) return Math.floor(seconds / 3600) + " h " + Math.floor(seconds / 60 % 60) + " min";
  return Math.floor(seconds / 86400) + " days";
}
/* When that was: the time of day, and the day where it is not today. */
function clock(when) {
  const day = when.toDateString() === new Date().toDateString() ? "" : when.toLocaleDateString("en-GB", {day: "numeric", month: "short"}) + " ";
  return day + when.toTimeString().slice(0, 5);
}
const count = (number, one, many) => number + " " + (number === 1 ? one : many);
const ended = (load) => load.state === "published" || load.state === "failed";
const unchecked = (load) => Math.max(0, load.bytes_total - load.bytes_verified);
function checkedText(load) {
  if (!load || load.state !== "published" || !load.bytes_total) return "";
  return unchecked(load) ? bytes(unchecked(load)) + " unchecked" : "all checked";
}
// Characters that nobody sees, or that turn a line around: a name must not look like another one.
// U+200C and U+200D are seen between letters of some scripts, and between emoji.
const joined = "[\\u0600-\\u109f\\u1780-\\u18af\\u1a20-\\u1b7f\\u20e3\\u2190-\\u2bff\\ua840-\\ua9df\\uaa60-\\uabff\\ufb50-\\ufdff\\ufe0f" +
  "\\ufe70-\\ufefc\\u{10a00}-\\u{11fff}\\u{1e900}-\\u{1e95f}\\u{1f000}-\\u{1faff}]";
const unsafe = new RegExp("[\\u0000-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e" +
  "\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff0-\\ufffb\\u{1bca0}-\\u{1bca3}\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}]" +
  "|(?<!" + joined + ")[\\u200c\\u200d]|[\\u200c\\u200d](?!" + joined + ")", "gu");
function plain(words) { return String(words).replace(unsafe, "?"); }
function text(id, words) { const value = plain(words); if (byId(id).textContent !== value) byId(id).textContent = value; }

/* One state for each model, so that the figures add up: who failed has failed until it is there, also while it is tried again. */
const stateOf = (model) => model.error && model.state !== "ready" ? "failed" : model.state;
const stateWords = (model) => stateOf(model) !== model.state && model.busy ? "failed, trying again" : stateOf(model);

/* Put these in the place of what is there. What did not change stays, so that focus and a screen reader stay where
 * they are; the focus of what is replaced goes to the button with the same key. */
function put(id, elements) {
  const parent = byId(id), focused = document.activeElement, key = parent.contains(focused) && focused.dataset.key;
  elements.forEach((element, at) => {
    const old = parent.children[at];
    if (!old) parent.append(element);
    else if (!old.isEqualNode(element)) old.replaceWith(element);
  });
  while (parent.children.length > elements.length) parent.lastElementChild.remove();
  if (key && !focused.isConnected) [...parent.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key)?.focus();
}

/* ---- the server ---- */
async function ask(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN), headers = token ? {Authorization: "Bearer " + token} : {};
  const answer = await fetch(path, {cache: "no-store", credentials: "omit", ...options, headers});
  const json = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(json.error ? json.error.message : "the server answered " + answer.status), {status: answer.status});
  return json;
}
function say(message, bad) {
  byId("said").hidden = false;
  byId("said").className = bad ? "bad" : "";
  byId("said").textContent = plain(message);
}
async function act(name, verb, done) {
  try {
    await ask("v1/models/" + encodeURIComponent(name) + "/" + verb, {method: "POST"});
    say(name + ": " + done);
  } catch (error) {
    say(name + ": " + error.message, true);
    if (error.status === 401) lock();
  }
  refresh();
}

/* ---- actions ---- */
function lock() { sessionStorage.removeItem(TOKEN); showStatus(); }
function button(name, verb, label, run) {
  const made = make("button", "", label);
  made.type = "button";
  made.dataset.key = verb + " " + name;
  made.setAttribute("aria-label", label + " " + name);
  made.onclick = run;
  return made;
}
function actions(model) {
  const cell = make("div", "buttons"), name = model.name;
  if (seen.status.changes !== "allowed" || !seen.node) return cell;
  if (!model.busy) {
    const label = model.error ? "Retry" : model.state === "ready" ? "Reload" : "Load";
    cell.append(button(name, "load", label, () => act(name, "load", "the source is asked again")));
  }
  if (model.pinned_by === "config") return cell; // pin: false there is what changes that
  cell.append(model.pinned ? button(name, "unpin", "Unpin", () => act(name, "unpin", "not pinned any more"))
                           : button(name, "pin", "Pin", () => act(name, "pin", "pinned")));
  if (model.versions.length && !model.busy && !model.pinned)
    cell.append(button(name, "evict", "Evict", () => dialog({head: "Evict " + name + "?", text: "Its memory is freed. The next request loads it again.",
      confirm: "Evict", run: () => act(name, "evict", "evicted")})));
  return cell;
}
/* One dialog for all: what it asks for, and what to run; an error of that stays in it. */
let confirmed = null;
function dialog(wanted) {
  confirmed = wanted.run;
  text("dialogHead", wanted.head);
  text("dialogText", wanted.text);
  text("confirm", wanted.confirm);
  text("dialogError", "");
  byId("tokenField").hidden = wanted.field !== "token";
  byId("specField").hidden = wanted.field !== "spec";
  byId("token").value = "";
  byId("dialog").showModal();
  byId(wanted.field || "cancel").focus();
}
byId("cancel").onclick = () => byId("dialog").close();
byId("form").onsubmit = async (event) => {
  event.preventDefault();
  try {
    await confirmed();
    byId("dialog").close();
  } catch (error) { text("dialogError", error.message); }
};
byId("unlock").onclick = () => {
  if (sessionStorage.getItem(TOKEN)) return lock();
  dialog({head: "Unlock actions", text: "The token of control.tokenFile. It is kept until this tab is closed.", field: "token", confirm: "Unlock", run: async () => {
    sessionStorage.setItem(TOKEN, byId("token").value.trim());
    await showStatus();
    if (seen.status.changes === "allowed") return;
    sessionStorage.removeItem(TOKEN);
    throw new Error("This token is wrong.");
  }});
};
byId("loadModel").onclick = () => {
  if (!byId("spec").value) byId("spec").value = "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: my-model}\nsource: {uri: \"\"}\n";
  dialog({head: "Load a model", text: "A model's spec, as YAML or JSON.", field: "spec", confirm: "Load", run: async () => {
    const answer = await ask("v1/loads", {method: "POST", body: byId("spec").value});
    say(answer.models.map((model) => model.name).join(", ") + ": asked for");
    refresh();
  }});
};

/* ---- the head ---- */
let began = 0;
async function showStatus() {
  const status = seen.status = await ask("v1/status"), held = sessionStorage.getItem(TOKEN) && status.changes === "allowed";
  began = Date.now() - status.uptime_seconds * 1000;
  text("nodeName", status.node);
  byId("unlock").hidden = !held && status.changes !== "token";
  text("unlock", held ? "Lock actions" : "Unlock actions");
  byId("loadModel").hidden = status.changes !== "allowed" || status.serves !== "node";
  document.body.classList.toggle("may", status.changes === "allowed");
  showModels();
}
function live(name, words) { byId("live").className = name; text("live", words); }

/* ---- the chart ---- */
const NS = "http:/" + "/www.w3.org/2000/svg"; /* a name, nothing is fetched */
function shape(tag, attributes, words) {
  const element = document.createElementNS(NS, tag);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  if (words) element.textContent = plain(words);
  return element;
}
/* The next of 1, 2, 4, 5, 8, 10, 20, … of its unit. */
function scaleTop(rate) {
  let unit = 1, top = 1;
  while (rate / unit >= 1000 && unit < 2 ** 40) unit *= 1024;
  for (let ten = 1; top * unit < rate; ten *= 10) for (top of [ten, 2 * ten, 4 * ten, 5 * ten, 8 * ten, 10 * ten]) if (top * unit >= rate) break;
  return Math.max(top * unit, 1024);
}
function drawRate() {
  const {step_seconds: step, bytes: all} = seen.history, steps = Number(byId("range").value), chart = byId("chart");
  const rates = all.slice(-steps).map((one) => one / step), unknown = steps - rates.length; /* before that nobody counted */
  const wide = chart.clientWidth || 600, high = chart.clientHeight || 150, left = 78, base = high - 20, peak = Math.max(...rates, 0), top = scaleTop(peak);
  const x = (at) => left + at * (wide - left - 2) / (steps - 1), y = (rate) => base - rate / top * (base - 10), parts = [];
  for (const part of [0, .5, 1])
    parts.push(shape("line", {class: "grid", x1: left, x2: wide, y1: y(top * part), y2: y(top * part)}),
               shape("text", {x: left - 6, y: y(top * part) + 4, "text-anchor": "end"}, bytes(top * part) + "/s"));
  const marks = wide < 500 ? 2 : 5;
  for (let mark = 0; mark <= marks; mark++) {
    const when = new Date(Date.now() - (1 - mark / marks) * steps * step * 1000);
    parts.push(shape("text", {x: x(mark / marks * (steps - 1)), y: high - 3, "text-anchor": mark === marks ? "end" : mark ? "middle" : "start"},
                     mark === marks ? "now" : when.toTimeString().slice(0, steps > 200 ? 5 : 8)));
  }
  const each = Math.ceil(steps / 450), points = [];
  for (let at = 0; at < rates.length; at += each) points.push(x(unknown + at).toFixed(1) + " " + y(Math.max(...rates.slice(at, at + each))).toFixed(1));
  const line = points.join(" L");
  if (points.length) parts.push(shape("path", {class: "area", d: `M${x(unknown)} ${base} L${line} L${x(steps - 1)} ${base} Z`}), shape("path", {class: "edge", d: "M" + line}));
  chart.setAttribute("viewBox", `0 0 ${wide} ${high}`);
  chart.setAttribute("aria-label", `Bytes per second, the last ${byId("range").selectedOptions[0].text}: at most ${bytes(peak)}/s`);
  chart.replaceChildren(...parts);
  text("peak", "peak " + bytes(peak) + "/s");
}
byId("range").onchange = drawRate;
new ResizeObserver(drawRate).observe(byId("chart"));

/* ---- loads ---- */
function loadFacts(load) {
  const facts = [];
  if (load.bytes_total) facts.push(bytes(load.bytes_done) + " of " + bytes(load.bytes_total), bytes(load.bytes_per_second) + "/s");
  if (!ended(load) && load.seconds_left !== null) facts.push(time(load.seconds_left) + " left");
  if (ended(load)) facts.push("in " + (load.seconds < 10 ? load.seconds.toFixed(1) + " s" : time(load.seconds)));
  if (load.bytes_verified) facts.push(bytes(load.bytes_verified) + " checked");
  if (load.state === "published" && unchecked(load)) facts.push(bytes(unchecked(load)) + " unchecked");
  if (load.signed) facts.push("signed by " + load.signed.by.slice(0, 40) + (load.signed.unsigned ? ", " + count(load.signed.unsigned, "file", "files") + " unsigned" : ""));
  if (load.bytes_resumed) facts.push(bytes(load.bytes_resumed) + " resumed");
  if (load.bytes_inherited) facts.push(bytes(load.bytes_inherited) + " of another version");
  if (load.connections) facts.push(count(load.connections, "connection", "connections"));
  if (load.retries) facts.push(count(load.retries, "retry", "retries"));
  return make("div", "facts", ...facts.map((fact) => make("span", "", fact)));
}
/* Caches before the store, if there are any: a sentence, and the worst of them. */
const failed = (place) => Object.values(place.failures).reduce((sum, times) => sum + times, 0);
function placesOf(load) {
  const caches = load.place_count - load.places.filter((place) => place.kind === "origin").length;
  if (!load.places.some((place) => place.kind === "cache")) return [];
  const part = load.bytes_fetched ? Math.round(100 * load.cached / load.bytes_fetched) : 0;
  const heads = ["Place", "Bytes", "Rate", "Failed", "Wrong"].map((label) => { const head = make("th", "", label); head.scope = "col"; return head; });
  const rows = load.places.map((place) => make("tr", place.wrong ? "error" : failed(place) ? "trouble" : "",
    cell("uri", "", place.kind === "origin" ? "the store" : place.name), cell("number", "Bytes", bytes(place.bytes)),
    cell("number", "Rate", bytes(place.bytes_per_second) + "/s"), cell("number", "Failed", String(failed(place))), cell("number", "Wrong", String(place.wrong))));
  const table = make("table", "places", make("thead", "", make("tr", "", ...heads)), make("tbody", "", ...rows));
  table.setAttribute("aria-label", "Where " + load.name + " comes from");
  return [make("p", "facts", part + " % from " + count(caches, "cache", "caches") + ", the rest from the store."), table];
}
function loadCard(load) {
  const card = make("li", "load"), bar = make("progress");
  bar.max = load.bytes_total || 1;
  bar.value = load.bytes_done;
  bar.setAttribute("aria-label", load.name);
  card.append(make("div", "top", make("span", "name", load.name), make("span", "state " + load.state, load.state), make("span", "percent", load.percent + " %")),
              bar, loadFacts(load), make("div", "uri", load.uri + (load.path ? " → " + load.path : "")));
  if (load.trouble) card.append(make("div", "trouble", load.trouble));
  card.append(...placesOf(load));
  return card;
}
function finishedItem(load) {
  const item = make("li", "", make("span", "name", load.name), make("span", "state " + load.state, load.state));
  if (load.ended_unix_seconds) item.append(make("span", "facts", "at " + clock(new Date(load.ended_unix_seconds * 1000))));
  item.append(loadFacts(load));
  if (load.error) item.append(make("div", "error", load.error.message));
  return item;
}
/* Since when, how often, which kind of error, and what to do about it. */
function failureFacts(error) {
  const facts = make("div", "facts");
  if (error.since_seconds !== undefined) facts.append(make("span", "", "since " + clock(new Date(Date.now() - error.since_seconds * 1000))));
  if (error.tries) facts.append(make("span", "", count(error.tries, "try", "tries")));
  if (error.kind) {
    const what = make("a", "", error.kind + ": what to do");
    what.href = seen.status.runbooks || "v1/errors/" + error.kind;
    facts.append(what);
  }
  return facts;
}
function failureCard(one) {
  const card = make("li", "load"), top = make("div", "top", make("span", "name", one.name), make("span", "state failed", stateWords(one)));
  const retry = one.error.retry_in_seconds;
  if (retry !== undefined && !one.busy) top.append(make("span", "facts", retry > 0 ? "next try in " + time(retry) : "next try soon"));
  if (one.versions) {
    const again = actions(one).firstElementChild;
    if (again && !one.busy) { again.dataset.key += " again"; top.append(make("span", "buttons", again)); }
  }
  card.append(top, make("div", "error", one.error.message), failureFacts(one.error));
  return card;
}
function showLoads() {
  const active = seen.loads.filter((load) => !ended(load) && load.state !== "queued"), done = seen.loads.filter(ended).reverse();
  text("rate", bytes(active.reduce((sum, load) => sum + load.bytes_per_second, 0)) + "/s");
  put("loads", active.map(loadCard));
  byId("noLoad").hidden = active.length > 0;
  byId("finishedSection").hidden = !done.length;
  text("finishedCount", String(done.length));
  put("finished", done.slice(0, 100).map(finishedItem));
  const whole = seen.loads.filter((load) => load.state === "published");
  text("checked", bytes(whole.reduce((sum, load) => sum + Math.min(load.bytes_verified, load.bytes_total), 0)));
  text("uncheckedText", "checked, " + bytes(whole.reduce((sum, load) => sum + unchecked(load), 0)) + " unchecked");
  if (!seen.node) showModels();
}

/* ---- models ---- */
/* Without a node: of the loads of this process, the latest of each name. */
function modelsOfLoads() {
  const models = new Map();
  for (const load of seen.loads)
    models.set(load.name, {name: load.name, state: load.state === "published" ? "ready" : ended(load) || load.state === "queued" ? load.state : "loading",
      uri: load.uri, load: load.id, bytes: load.bytes_total, path: load.path, error: load.error, busy: !ended(load), waiting: 0,
      versions: load.state === "published" ? [{version: "", state: "ready", current: true, bytes: load.bytes_total, path: load.path}] : []});
  return [...models.values()];
}
function users(version) {
  const list = make("ul", "users"), refs = version.references || [];
  for (const ref of refs.slice(0, 8)) list.append(make("li", "", (ref.who || ref.kind) + " ", make("span", "age", time(ref.age_seconds))));
  if (version.reference_count > list.children.length) list.append(make("li", "none", "and " + (version.reference_count - list.children.length) + " more"));
  if (version.reference_count === 0) list.append(make("li", "none", version.state === "ready" ? "unused for " + time(version.idle_seconds) : "not used yet"));
  return list;
}
function cell(name, label, ...children) {
  const made = make("td", name, ...children);
  made.dataset.label = label;
  return made;
}
function place(version) {
  const held = version.holder && (version.device === "host" ? version.holder : version.holder + ", " + version.device);
  const what = make("span", "version", version.version + " ");
  if (version.state !== "ready") what.append(make("span", "state waiting", version.state));
  else if (!version.current && !version.key) what.append(make("span", "none", "old"));
  return make("div", "", what, make("div", "uri", (version.key ? version.key + ", " : "") + (version.path || held || "")));
}
function modelRow(model, loads) {
  const row = make("tr"), named = cell("", "", make("div", "name", model.name), make("div", "uri detail", model.uri || ""));
  const state = cell("", "", make("span", "state " + stateOf(model), stateWords(model)));
  if (model.pinned) state.append(" ", make("span", "state", "pinned"));
  if (model.waiting) state.append(make("div", "none", count(model.waiting, "client waits", "clients wait")));
  if (stateOf(model) === "failed") state.append(make("div", "error", byId("state").value === "failed" ? model.error.message : "see failures"));
  row.append(named, state);
  if (model.versions.length)
    row.append(cell("detail", "Version", ...model.versions.map(place)),
               cell("number", "Size", bytes(model.bytes), make("div", "none", checkedText(loads.get(model.load)))),
               cell("detail", "In use by", ...model.versions.filter((version) => version.references).map(users)));
  else row.append(cell("none detail", "", "not in memory"), cell("detail", ""), cell("detail", ""));
  row.append(cell("actions", "", actions(model)));
  return row;
}
const idle = (model) => model.versions.some((version) => version.reference_count) ? -1 : Math.min(Infinity, ...model.versions.map((version) => version.idle_seconds ?? 0));
const sorts = {
  name: () => 0,
  state: (a, b) => order.indexOf(stateOf(a)) - order.indexOf(stateOf(b)) || !a.error - !b.error,
  bytes: (a, b) => b.bytes - a.bytes,
  idle: (a, b) => (idle(a) > idle(b)) - (idle(a) < idle(b)),
};
function showModels() {
  const models = seen.node ? seen.node.models : modelsOfLoads(), loads = new Map(seen.loads.map((load) => [load.id, load]));
  const words = byId("filter").value.toLowerCase(), wanted = byId("state").value, sort = byId("sort").value;
  const shown = models.filter((model) => (!wanted || stateOf(model) === wanted) && (model.name + " " + (model.uri || "")).toLowerCase().includes(words));
  shown.sort((a, b) => sorts[sort](a, b) || (a.name < b.name ? -1 : 1));
  put("models", shown.map((model) => modelRow(model, loads)));
  text("shown", shown.length === models.length ? "" : shown.length + " of " + models.length);
  byId("noModel").hidden = shown.length > 0;
  text("noModel", models.length ? "No model fits the filter." : "No model yet.");
  for (const head of document.querySelectorAll("th[data-sort]"))
    if (head.dataset.sort === sort) head.setAttribute("aria-sort", sort === "bytes" ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  showFailures(models);
}
/* How full: what the daemon may hold, and the file system that it lies on, which others fill, too. */
function showBars(node) {
  const used = node.directory_bytes - node.directory_free_bytes;
  byId("heldBar").hidden = byId("roomFigure").hidden = false;
  byId("heldBar").max = node.budget_bytes || 1;
  byId("heldBar").value = node.held_bytes;
  byId("roomFigure").hidden = !node.directory_bytes;
  byId("roomBar").max = node.directory_bytes || 1;
  byId("roomBar").value = used;
  text("room", bytes(node.directory_free_bytes));
  text("roomText", "free where they lie, of " + bytes(node.directory_bytes));
}
byId("moreFailures").onclick = () => { byId("state").value = "failed"; showModels(); byId("state").focus(); };
const lostGpus = () => (seen.node && seen.node.lost_gpus || []).map((gpu) => ({name: gpu.device, state: "failed", error: {message: gpu.reason}}));
function showFailures(models) {
  const failures = [...lostGpus(), ...models.filter((model) => model.error)], queue = seen.node ? seen.node.queue : seen.loads.filter((load) => load.state === "queued");
  const held = models.reduce((sum, model) => sum + (model.state === "ready" ? model.bytes : 0), 0);
  const sums = Object.fromEntries(order.map((state) => [state, models.filter((model) => stateOf(model) === state).length]));
  byId("failureSection").hidden = !failures.length;
  byId("failedFigure").className = failures.length ? "figure bad" : "figure";
  for (const state of ["failed", "queued", "ready", "absent"]) text(state, String(sums[state]));
  text("active", String(sums.loading));
  byId("absentFigure").hidden = !sums.absent;
  text("held", bytes(seen.node ? seen.node.held_bytes : held));
  text("heldText", seen.node ? "in memory, of " + bytes(seen.node.budget_bytes) : "loaded");
  if (seen.node) showBars(seen.node);
  put("failures", failures.slice(0, FAILURES_SHOWN).map(failureCard));
  byId("moreFailures").hidden = failures.length <= FAILURES_SHOWN;
  text("moreFailures", "Show all " + failures.length + " below");
  byId("queueSection").hidden = !queue.length;
  put("queue", queue.map((one) => make("li", "", make("span", "name", one.name), " ", make("span", "facts", one.reason || "other loads run first"))));
  document.title = (failures.length ? "(" + failures.length + " failed) " : "") + (seen.status.node ? seen.status.node + " · " : "") + "sluice";
}
byId("details").oninput = () => document.body.classList.toggle("detailed", byId("details").checked);
for (const id of ["filter", "state", "sort"]) byId(id).oninput = showModels;
for (const head of document.querySelectorAll("th[data-sort]"))
  head.firstElementChild.onclick = () => { byId("sort").value = head.dataset.sort; showModels(); };

/* ---- time ---- */
let turn = 0;
async function refresh() {
  try {
    if (seen.status.serves === "node") seen.node = await ask("v1/models");
    seen.history = await ask("v1/history");
    if (turn++ % 15 === 0) await showStatus();
    showModels();
    drawRate();
    text("about", "version " + seen.status.version + " · up " + time((Date.now() - began) / 1000));
  } catch (error) { /* the stream of events tells that the server is away */ }
}
function connect() {
  const source = new EventSource("v1/events"), take = (event) => { seen.loads = JSON.parse(event.data).loads; showLoads(); };
  source.addEventListener("state", take);
  source.addEventListener("progress", take);
  source.onopen = () => { live("on", "live"); turn = 0; };
  source.onerror = () => {
    live("off", "no connection, trying again");
    text("rate", "0 bytes/s");
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
  };
}
connect();
showStatus().catch(() => {}).then(refresh);
setInterval(() => document.hidden || refresh(), 2000);
document.addEventListener("visibilitychange", () => document.hidden || refresh());
