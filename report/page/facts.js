// What the numbers say.

const data = JSON.parse(document.getElementById('data').textContent);
const { spec, records, comparison } = data;

// All MoE layers, those left out on purpose too; `column` is where a layer stands in the record.
const layers = [
  ...spec.layers.map((layer, column) => ({ layer, column, reason: null })),
  ...spec.excluded.map(([layer, reason]) => ({ layer, column: null, reason })),
].sort((one, other) => one.layer - other.layer);
const layerLabels = layers.map(({ layer }) => String(layer));
const byLayer = (values) => layers.map(({ column }) => (column === null ? null : values[column] ?? null));

const sum = (values) => values.reduce((total, value) => total + value, 0);
function median(values) {
  const sorted = values.filter(isKnown).sort((one, other) => one - other);
  if (sorted.length === 0) return null;
  return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
}
const largest = (values) => values.filter(isKnown).reduce((most, value) => Math.max(most, value), -Infinity);
const smallest = (values) => values.filter(isKnown).reduce((least, value) => Math.min(least, value), Infinity);
const orNull = (value) => (Number.isFinite(value) ? value : null);

// An agreement as the data hold it: sums over what both records have.
function agreement([rows, unequalRows, reroutedRows, routers, unequalRouters, reroutedRouters, ids, sharedIds]) {
  const rate = (part, whole) => (whole > 0 ? part / whole : null);
  return {
    rows, routers,
    reroutedRows: rate(reroutedRows, rows),
    unequalRows: rate(unequalRows, rows),
    rerouted: rate(reroutedRouters, routers),
    reordered: rate(unequalRouters - reroutedRouters, routers),
    overlap: rate(sharedIds, ids),
  };
}

// One layer of one record: how its load is spread. Null where nothing was recorded.
function spread(load) {
  const total = load ? sum(load) : 0;
  if (total === 0) return null;
  const busiest = load.indexOf(largest(load));
  return {
    total, busiest,
    share: load[busiest] / total,
    imbalance: (load[busiest] * load.length) / total,
    never: load.filter((chosen) => chosen === 0).length,
  };
}
for (const record of records) record.spread = byLayer(record.load.map(spread));

// How uneven evenly random routing looks after this many rows: the busiest of E experts stands some
// sqrt(2 ln E) standard deviations above the mean.
function chanceImbalance(rows) {
  const mean = (rows * spec.top_k) / spec.num_experts;
  const busy = spec.top_k / spec.num_experts;
  return rows > 0 ? Math.min(1 / busy, 1 + Math.sqrt((2 * Math.log(spec.num_experts) * (1 - busy)) / mean)) : null;
}

// The overlap of two records that have these loads and nothing else in common.
function chanceOverlap(column) {
  const [first, second] = records.map((record) => record.load[column]);
  if (!first || !second) return null;
  const shares = [sum(first), sum(second)];
  return spec.top_k * sum(first.map((value, expert) => (value / shares[0]) * (second[expert] / shares[1])));
}

function spanLabel(start, width) {
  return width === 1 ? String(start) : `${start}–${start + width - 1}`;
}
const versionLabel = (version) => (version === null ? 'none' : `v${version}`);

// Rows by how many layers are rerouted: [first, last, rows]; none alone, then bins of one width.
function histogramBins(rows, most = 40) {
  const width = Math.ceil((rows.length - 1) / most);
  const bins = [[0, 0, rows[0]]];
  for (let first = 1; first < rows.length; first += width) {
    const last = Math.min(first + width, rows.length) - 1;
    bins.push([first, last, sum(rows.slice(first, last + 1))]);
  }
  return bins;
}

// Which places stand out: those above twice the median, most first.
function outstanding(labels, values, most = 3) {
  const middle = median(values);
  return values.map((value, index) => ({ label: labels[index], value }))
    .filter(({ value }) => isKnown(value) && value > 0 && value > 2 * middle)
    .sort((one, other) => other.value - one.value).slice(0, most);
}

// A curve's first and last quarter, to say whether it rises.
function ends(values) {
  const present = values.filter(isKnown);
  const quarter = Math.max(1, Math.floor(present.length / 4));
  if (present.length < 2) return null;
  const mean = (part) => sum(part) / part.length;
  return [mean(present.slice(0, quarter)), mean(present.slice(-quarter))];
}
