// The three charts. Chart.js draws on a canvas, so colours are read from the style sheet, again
// after each change of theme, and each canvas says in words what it shows.
/* global Chart */
import {byId, duration, rate} from './format.js';
import {kParts} from './requests.js';

const kBars = 24;
const kSamples = 120;  // about two minutes

const charts = {};
const samples = [];  // {now, generated, prefilled}: totals as the server counts them

// Any CSS colour, as the browser computes it for the current theme.
function colour(name) {
  const probe = document.createElement('span');
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

function axis(format, more = {}) {
  return {
    beginAtZero: true,
    grid: {drawBorder: false},
    ticks: {maxTicksLimit: 5, callback: (value) => format(value)},
    ...more,
  };
}

function make(id, type, datasets, scales, tooltip) {
  charts[id] = new Chart(byId(`chart-${id}`), {
    type,
    data: {labels: [], datasets},
    options: {
      animation: false,
      maintainAspectRatio: false,
      interaction: {mode: 'index', intersect: false},
      plugins: {legend: {display: false}, tooltip: {callbacks: {label: tooltip}}},
      scales,
    },
  });
}

export function setUpCharts() {
  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  Chart.defaults.font.size = 11;
  make('ttft', 'bar', kParts.map((part) => ({label: part, data: [], maxBarThickness: 28})), {
    x: {stacked: true, grid: {display: false}, ticks: {maxRotation: 0, autoSkipPadding: 12}},
    y: axis(duration, {stacked: true}),
  }, (item) => `${item.dataset.label}: ${duration(item.raw)}`);
  for (const id of ['generated', 'prefilled']) {
    make(id, 'line', [{data: [], borderWidth: 2, pointRadius: 0, cubicInterpolationMode: 'monotone', fill: true}], {
      x: {display: false},
      y: axis(rate, {suggestedMax: 10}),
    }, (item) => `${rate(item.raw)} tokens/s`);
  }
  paintCharts();
}

export function paintCharts() {
  const grid = colour('line'), text = colour('muted');
  for (const chart of Object.values(charts)) {
    for (const scale of Object.values(chart.options.scales)) {
      if (scale.grid) scale.grid.color = grid;
      if (scale.ticks) scale.ticks.color = text;
    }
  }
  charts.ttft.data.datasets.forEach((set) => set.backgroundColor = colour(`part-${set.label}`));
  for (const [id, name] of [['generated', 'accent'], ['prefilled', 'part-compute']]) {
    const [set] = charts[id].data.datasets;
    set.borderColor = colour(name);
    set.backgroundColor = set.borderColor.replace(/^rgb\((.*)\)$/, 'rgba($1, 0.15)');
  }
  Object.values(charts).forEach((chart) => chart.update());
}

export function showCharts(state) {
  showFirstTokens(state.requests);
  samples.push({now: state.now, generated: state.totals.n_generated, prefilled: state.totals.n_prefilled});
  // A server that was started again counts from nothing.
  if (samples.length > 1 && samples.at(-2).generated > samples.at(-1).generated) samples.splice(0, samples.length - 1);
  if (samples.length > kSamples + 1) samples.shift();
  showRates('generated');
  showRates('prefilled');
}

// Tokens per second since the look before; 0 before there are two.
export function newestRate(kind) {
  return rates(kind).at(-1)?.value ?? 0;
}

function rates(kind) {
  return samples.slice(1).map((sample, i) => {
    const before = samples[i];
    const seconds = Math.max(0.001, sample.now - before.now);
    return {now: sample.now, value: Math.max(0, sample[kind] - before[kind]) / seconds};
  });
}

function showFirstTokens(requests) {
  const ended = requests.filter((r) => r.state === 'done').slice(0, kBars).reverse();
  const chart = charts.ttft;
  chart.data.labels = ended.map((r) => `#${r.number}`);
  chart.data.datasets.forEach((set) => set.data = ended.map((r) => r.parts_ms[set.label] ?? 0));
  chart.update();
  if (ended.length === 0) return;
  const spelled = ended.map((r) => `#${r.number} ${duration(r.ttft_ms)}`).join(', ');
  chart.canvas.setAttribute('aria-label', `Time to the first token: ${spelled}`);
}

function showRates(kind) {
  const chart = charts[kind];
  const points = rates(kind);
  chart.data.labels = points.map((p) => new Date(p.now * 1000).toLocaleTimeString());
  chart.data.datasets[0].data = points.map((p) => p.value);
  chart.update();
  const label = kind === 'generated' ? 'Generated tokens' : 'Computed prompt tokens';
  const most = Math.max(0, ...points.map((p) => p.value));
  chart.canvas.setAttribute('aria-label',
      `${label} per second: ${rate(newestRate(kind))} now, at most ${rate(most)} in the last two minutes`);
}
