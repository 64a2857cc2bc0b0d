// Pictures of the last prompts: tokens × layers, coloured by where each cell's K,V came from.
import {byId, count, element, legendItem, percent, svgElement} from './format.js';

const kSources = {
  ram: 'RAM tier',
  disk: 'disk tier',
  queue: 'RAM, not yet stored',
  computed: 'computed',
};
const kPictures = 6;
const kNarrowest = 1 / 150;  // of the width: what is narrower could not be seen

let drawn = '';  // numbers of the prompts on the page

export function setUpLattices() {
  const items = Object.entries(kSources).map(([name, label]) => legendItem(`source-${name}`, label));
  byId('source-legend').append(...items, legendItem('source-none', 'not needed'));
}

export function showLattices(requests) {
  const pictured = requests.filter((r) => r.cells?.length > 0).slice(0, kPictures);
  const key = pictured.map((r) => r.number).join();
  if (key === drawn) return;
  drawn = key;
  byId('lattice-empty').hidden = pictured.length > 0;
  byId('lattices').replaceChildren(...pictured.map(picture));
}

function readCells(request) {
  return request.cells.map(([pos, n, layer, layerEnd, source]) => ({pos, n, layer, layerEnd, source}));
}

function picture(request) {
  const cells = readCells(request);
  const nLayer = Math.max(...cells.map((c) => c.layerEnd));
  const summary = shares(cells, request.n_prompt * nLayer);
  const caption = element('figcaption', {}, element('strong', {}, `#${request.number}`),
      element('span', {class: 'muted'}, `${count(request.n_prompt)} tokens × ${nLayer} layers`),
      element('span', {class: 'muted'}, summary));
  const plot = element('div', {class: 'lattice-plot'},
      element('div', {class: 'lattice-layers muted'}, element('span', {}, 'layer 0'), element('span', {}, `${nLayer - 1}`)),
      draw(request, cells, nLayer, summary),
      element('div', {class: 'lattice-tokens muted'}, element('span', {}, 'token 0'),
          element('span', {}, count(request.n_prompt - 1))));
  return element('figure', {class: 'lattice', 'data-number': request.number}, caption, plot,
      asTable(cells, request.cells_cut));
}

// "96 % disk tier, 4 % computed"
function shares(cells, nCell) {
  const sums = new Map();
  for (const c of cells) sums.set(c.source, (sums.get(c.source) ?? 0) + c.n * (c.layerEnd - c.layer));
  const known = [...sums.values()].reduce((a, b) => a + b, 0);
  const spelled = [...sums].map(([source, n]) => `${percent(n, nCell)} ${labelOf(source)}`);
  if (known < nCell) spelled.push(`${percent(nCell - known, nCell)} not needed`);
  return spelled.join(', ');
}

function labelOf(source) {
  return kSources[source] ?? source;
}

function draw(request, cells, nLayer, summary) {
  const width = 1000;
  const x = columns(cells, request.n_prompt, width);
  const height = Math.min(150, Math.max(60, nLayer * 4));
  const svg = svgElement('svg', {
    viewBox: `0 0 ${width} ${nLayer}`,
    preserveAspectRatio: 'none',
    height,
    role: 'img',
    'aria-label': `Prompt ${request.number}: ${summary}`,
  });
  svg.append(svgElement('rect', {class: 'source-none', width, height: nLayer}));
  for (const c of cells) {
    const known = Object.hasOwn(kSources, c.source) ? c.source : 'other';
    const left = x.get(c.pos), right = x.get(c.pos + c.n);
    svg.append(svgElement('rect', {
      class: `cell source-${known}`,
      'data-source': c.source,
      x: left, width: right - left, y: c.layer, height: c.layerEnd - c.layer,
    }, svgElement('title', {}, `tokens ${rangeOf(c.pos, c.n)}, layers ` +
        `${rangeOf(c.layer, c.layerEnd - c.layer)}: ${labelOf(c.source)}`)));
  }
  for (let layer = 1; layer < nLayer; ++layer) {
    svg.append(svgElement('line', {class: 'layer-line', x2: width, y1: layer, y2: layer}));
  }
  return svg;
}

// Where each token at which a cell begins or ends stands.
function columns(cells, nToken, width) {
  const edges = new Set([0, nToken]);
  for (const c of cells) edges.add(c.pos).add(c.pos + c.n);
  const sorted = [...edges].sort((a, b) => a - b);
  const weights = sorted.slice(1).map((end, i) => Math.max(end - sorted[i], nToken * kNarrowest));
  const total = weights.reduce((a, b) => a + b, 0);
  const x = new Map([[sorted[0], 0]]);
  let sum = 0;
  weights.forEach((weight, i) => x.set(sorted[i + 1], width * (sum += weight) / total));
  return x;
}

function rangeOf(first, n) {
  return n === 1 ? `${first}` : `${first}–${first + n - 1}`;
}

// The same in words: runs of chunks of one source.
function asTable(cells, cut) {
  const runs = [];
  for (const c of cells) {
    const last = runs.findLast((r) => r.layer === c.layer && r.layerEnd === c.layerEnd);
    if (last?.source === c.source && last.pos + last.n === c.pos) {
      last.n += c.n;
    } else {
      runs.push({...c});
    }
  }
  const row = (cell, values) => element('tr', {}, ...values.map((v) => element(cell, {}, v)));
  const body = runs.slice(0, 100).map((r) => row('td',
      [rangeOf(r.pos, r.n), rangeOf(r.layer, r.layerEnd - r.layer), labelOf(r.source)]));
  if (cut || runs.length > 100) body.push(row('td', ['and more', '', '']));
  return element('details', {}, element('summary', {}, 'In words'),
      element('table', {}, row('th', ['tokens', 'layers', 'from']), ...body));
}
