// The list of requests: what runs first, then the newest; each with its time to the first token.
import {byId, count, duration, element, fillBar, legendItem, percent, rate, setText} from './format.js';

export const kParts = ['queue', 'wait', 'lookup', 'load', 'compute'];
const kShortList = 10;

const rows = new Map();  // by number
let showAll = false;

export function setUpRequests(redraw) {
  byId('part-legend').append(...kParts.map((part) => legendItem(`part-${part}`, part)));
  byId('base-url').textContent = `${location.origin}/v1`;
  byId('requests-more').addEventListener('click', () => {
    showAll = !showAll;
    redraw();
  });
}

export function showRequests(requests) {
  const active = requests.filter(isActive);
  const ended = requests.filter((r) => !isActive(r));
  const all = [...active, ...ended];
  const shown = showAll ? all : all.slice(0, Math.max(kShortList, active.length));
  const longest = Math.max(1, ...shown.map(firstTokenMs));
  const list = byId('requests');
  shown.forEach((request, i) => {
    const row = rows.get(request.number) ?? makeRow(request);
    updateRow(row, request, longest);
    if (list.children[i] !== row.item) list.insertBefore(row.item, list.children[i] ?? null);
  });
  const kept = new Set(shown.map((r) => r.number));
  for (const [number, row] of rows) {
    if (kept.has(number)) continue;
    row.item.remove();
    rows.delete(number);
  }
  byId('requests-empty').hidden = all.length > 0;
  const more = byId('requests-more');
  more.hidden = all.length <= kShortList;
  setText(more, showAll ? 'Show fewer' : `Show all ${all.length}`);
}

function isActive(request) {
  return request.state === 'running' || request.state === 'waiting';
}

// So far, while there is none.
function firstTokenMs(request) {
  return request.ttft_ms > 0 ? request.ttft_ms : request.age_ms;
}

function makeRow(request) {
  const row = {
    state: element('span', {class: 'state'}),
    facts: element('span', {class: 'request-numbers'}),
    bar: element('div', {class: 'bar', role: 'img'}),
    numbers: element('p', {class: 'request-numbers'}),
    answer: element('span', {class: 'request-numbers'}),
  };
  const name = element('div', {class: 'request-name', title: request.id},
      element('strong', {}, `#${request.number}`), request.endpoint, row.state);
  row.item = element('li', {class: 'request', 'data-number': request.number},
      name, row.bar, row.facts, row.numbers);
  rows.set(request.number, row);
  return row;
}

function updateRow(row, request, longestMs) {
  row.item.dataset.state = row.state.dataset.state = request.state;
  setText(row.state, stateText(request));
  setText(row.facts, factsOf(request));
  const parts = kParts.map((part) => ({part, ms: request.parts_ms[part] ?? 0}));
  fillBar(row.bar, parts.map(({part, ms}) => ({name: `part-${part}`, share: ms / longestMs})));
  const spelled = parts.filter(({ms}) => ms >= 0.05).map(({part, ms}) => unbroken(`${part} ${duration(ms)}`));
  const first = request.ttft_ms > 0 ? duration(request.ttft_ms) :
                isActive(request)   ? `${duration(request.age_ms)} so far` :
                                      'none';
  const text = `First token: ${first}${spelled.length ? ` = ${spelled.join(' + ')}` : ''}`;
  row.bar.setAttribute('aria-label', text);
  setText(row.numbers, text);
}

function stateText(request) {
  if (request.state !== 'running') return request.state;
  if (request.ttft_ms > 0) return 'generating';
  return request.n_prefilled > 0 ? `prefill ${percent(request.n_prefilled, request.n_prompt)}` : 'starting';
}

function unbroken(text) {
  return text.replaceAll(' ', '\u00a0');
}

function factsOf(request) {
  const facts = [`${count(request.n_prompt)} prompt tokens`];
  if (request.n_cached > 0) facts.push(`${percent(request.n_cached, request.n_prompt)} reused`);
  if (request.n_generated > 0) facts.push(`${count(request.n_generated)} generated`);
  const speed = request.decode_tok_s ||
      (request.decode_ms > 500 ? 1000 * request.n_generated / request.decode_ms : 0);
  if (speed > 0) facts.push(`${rate(speed)} tok/s`);
  return facts.map(unbroken).join(' · ');
}
