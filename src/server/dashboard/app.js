// Asks the server for its state each second and shows it; theme and API key.
import {newestRate, paintCharts, setUpCharts, showCharts} from './charts.js';
import {byId, bytes, count, duration, element, fillBar, percent, rate, setText} from './format.js';
import {setUpLattices, showLattices} from './lattice.js';
import {setUpRequests, showRequests} from './requests.js';

const kPeriodMs = 1000;
const kPatienceMs = 10000;
const kThemes = ['auto', 'light', 'dark'];

let newest = null;  // the state on the page
let timer = 0;
let asking = false;

// --- Asking --------------------------------------------------------------------------------------

// Storage may be forbidden: then nothing is remembered.
function remembered(storage, name) {
  try {
    return window[storage].getItem(name) ?? '';
  } catch {
    return '';
  }
}

function remember(storage, name, value) {
  try {
    window[storage].setItem(name, value);
  } catch {
    // As said above.
  }
}

let key = remembered('sessionStorage', 'headstart-key');

async function ask() {
  const headers = key ? {Authorization: `Bearer ${key}`} : {};
  const signal = AbortSignal.timeout(kPatienceMs);
  const response = await fetch('/headstart/state', {headers, signal, cache: 'no-store'});
  if (response.status === 401 || response.status === 403) return wantKey();
  if (!response.ok) throw new Error(`status ${response.status}`);
  byId('key-form').hidden = true;
  newest = await response.json();
  show();
}

// One question at a time; none while nobody looks.
async function look() {
  clearTimeout(timer);
  if (asking || document.hidden) return;
  asking = true;
  try {
    await ask();
  } catch {
    setStatus('lost', 'no answer');
    say('The server does not answer. This page asks again each second.');
  }
  asking = false;
  if (!byId('key-form').hidden) return;  // goes on with a key
  timer = setTimeout(look, kPeriodMs);
}

function wantKey() {
  setStatus('lost', 'locked');
  say(key ? 'The server refused this key.' : '');
  key = '';
  byId('key-form').hidden = false;
  byId('key').focus();
}

// --- Showing -------------------------------------------------------------------------------------

function setStatus(state, text) {
  byId('status').dataset.state = state;
  setText(byId('status'), text);
}

function say(text) {
  byId('notice').hidden = text === '';
  setText(byId('notice'), text);
}

function show() {
  if (newest === null) return;
  const s = newest;
  setStatus(s.ready ? 'live' : 'loading', s.ready ? 'live' : 'loading the model');
  say('');
  setText(byId('model'), s.ready ? `${s.model} · context of ${count(s.n_ctx)} tokens` : 'the model is loading');
  setText(byId('version'), `Headstart ${s.headstart}, up ${duration(s.uptime_s * 1000)}`);
  setText(byId('kernels'), s.kernels ?? '');
  showCharts(s);
  showTiles(s);
  showRequests(s.requests);
  showLattices(s.requests);
  showTiers(s.tiers);
  showMemory(s);
}

function showTiles(s) {
  setText(byId('tile-running'), `${s.queue.n_running} of ${s.queue.n_running_max}`);
  setText(byId('tile-queue'), `${s.queue.n_waiting} of ${s.queue.n_waiting_max} waiting`);
  setText(byId('tile-generated'), rate(newestRate('generated')));
  setText(byId('tile-prefilled'), rate(newestRate('prefilled')));
  const cached = s.totals.n_cached ?? 0, prompt = s.totals.n_prompt ?? 0;
  setText(byId('tile-reused'), prompt ? percent(cached, prompt) : '–');
  setText(byId('tile-reused-of'), prompt ? `${count(cached)} of ${count(prompt)}` : 'nothing asked yet');
  const firsts = s.requests.filter((r) => r.state === 'done').map((r) => r.ttft_ms).sort((a, b) => a - b);
  setText(byId('tile-ttft'), firsts.length ? duration(firsts[firsts.length >> 1]) : '–');
  setText(byId('tile-ttft-of'), firsts.length ? `of the last ${firsts.length}` : 'nothing ended yet');
}

// A labelled bar, made once and then filled again.
function gauge(parent, name, className) {
  const found = [...parent.children].find((child) => child.dataset.name === name);
  if (found) return found;
  const made = element('div', {class: className, 'data-name': name},
      element('div', {class: 'gauge-head'}, element('span'), element('strong')),
      element('div', {class: 'bar', role: 'img'}), element('p', {class: 'muted'}));
  parent.append(made);
  return made;
}

function fillGauge(node, title, value, segments, details) {
  const [head, bar, more] = node.children;
  setText(head.children[0], title);
  setText(head.children[1], value);
  fillBar(bar, segments);
  bar.setAttribute('aria-label', `${title}: ${value}, ${details}`);
  setText(more, details);
}

function showTiers(tiers) {
  byId('tiers-empty').hidden = tiers.length > 0;
  for (const t of tiers) {
    const asked = t.n_hit + t.n_miss;
    const lost = t.n_evicted ? `, ${count(t.n_evicted)} evicted` : '';
    const bad = t.n_corrupt + t.n_put_failed;
    const name = t.name === 'ram' ? 'RAM' : t.name === 'disk' ? 'Disk' : t.name;
    const colour = t.name === 'ram' || t.name === 'disk' ? `source-${t.name}` : 'source-other';
    fillGauge(gauge(byId('tiers'), t.name, 'gauge'), name,
        asked ? `hit rate ${percent(t.n_hit, asked)}` : 'not asked yet', [{name: colour, share: t.size_bytes / Math.max(1, t.budget_bytes)}],
        `${bytes(t.size_bytes)} of ${bytes(t.budget_bytes)} · ${count(t.n_chunk)} chunks · ` +
        `${count(t.n_hit)} of ${count(asked)} loads served${lost}${bad ? `, ${count(bad)} failed` : ''}`);
  }
}

function showMemory(s) {
  const m = s.memory, box = byId('memory');
  const share = (n, of) => n / Math.max(1, of);
  const of = (n, most) => `${bytes(n)} of ${bytes(most)}`;
  if (m.total_bytes > 0) {
    fillGauge(gauge(box, 'process', 'gauge'), 'This process', of(m.process_bytes, m.total_bytes),
        [{name: 'use', share: share(m.process_bytes, m.total_bytes)},
         {name: 'use-model', share: share(m.mapped_bytes, m.total_bytes)}],
        `and ${bytes(m.mapped_bytes)} of mapped files, the model's; ${bytes(m.available_bytes)} still available`);
  }
  if (m.kv_bytes_max > 0) {
    fillGauge(gauge(box, 'kv', 'gauge'), 'Live KV cache', of(m.kv_bytes, m.kv_bytes_max),
        [{name: 'use', share: share(m.kv_bytes, m.kv_bytes_max)}],
        `the budget is a full context in each slot; slots: ${count(s.queue.n_running_max)}`);
  }
  const ram = s.tiers.find((t) => t.name === 'ram');
  if (ram) {
    fillGauge(gauge(box, 'ram', 'gauge'), 'Stored chunks in RAM', of(ram.size_bytes, ram.budget_bytes),
        [{name: 'source-ram', share: share(ram.size_bytes, ram.budget_bytes)}],
        `${bytes(s.store?.queue_bytes ?? 0)} wait to be stored; ${count(s.store?.n_dropped ?? 0)} chunks were ` +
        'dropped because storing was behind');
  }
}

// --- Theme ---------------------------------------------------------------------------------------

function setTheme(theme) {
  if (!kThemes.includes(theme)) theme = 'auto';
  document.documentElement.dataset.theme = theme;
  setText(byId('theme'), `Theme: ${theme}`);
  remember('localStorage', 'headstart-theme', theme);
}

function setUpTheme() {
  setTheme(remembered('localStorage', 'headstart-theme'));
  byId('theme').addEventListener('click', () => {
    setTheme(kThemes[(kThemes.indexOf(document.documentElement.dataset.theme) + 1) % kThemes.length]);
    paintCharts();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', paintCharts);
}

// --- Start ---------------------------------------------------------------------------------------

setUpTheme();
setUpRequests(show);
setUpLattices();
setUpCharts();
byId('key-form').addEventListener('submit', (event) => {
  event.preventDefault();
  key = byId('key').value.trim();
  byId('key').value = '';
  remember('sessionStorage', 'headstart-key', key);
  byId('key-form').hidden = true;
  look();
});
document.addEventListener('visibilitychange', look);
look();
