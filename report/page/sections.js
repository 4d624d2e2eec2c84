// The pictures and tables, section by section.

const looks = ['first', 'second'];
const recordNames = records.map((record, index) => (records.length === 1 ? 'record' : `${index === 0 ? 'first' : 'second'} record`));
const section = (id, title, ...children) => el('section', { id }, el('h2', {}, title), ...children);
const none = (text) => el('p', { class: 'none' }, text);
const columnsOf = (texts, numbers) => [...texts.map((name) => ({ name, text: true })), ...numbers.map((name) => ({ name }))];

function ratioLegend(zero) {
  return [
    el('span', {}, '¼× ', el('i', { class: 'ramp both' }), ' 4× and more; middle = even'),
    zero && key('never', zero),
    key('hatch', UNKNOWN),
  ];
}

// Load of experts by layer.

// What the heat map can show: each view has a ratio per expert of a layer, or null.
function loadViews() {
  const views = records.map((record, index) => ({
    name: recordNames[index], never: true,
    ratio: (column, expert) => {
      const load = column === null ? null : record.load[column];
      return load ? load[expert] / record.means[column] : null;
    },
    words: (column, expert) => {
      const load = record.load[column];
      return [`chosen ${plural(load[expert], 'time')}`, `${times(load[expert] / record.means[column])} the even share`];
    },
  }));
  if (records.length === 2) {
    const [first, second] = views;
    const ratio = (column, expert) => {
      const before = first.ratio(column, expert);
      const after = second.ratio(column, expert);
      if (before === null || after === null) return null;
      if (before === 0) return after === 0 ? 1 : 16;
      return Math.max(after / before, 1 / 16);
    };
    views.push({
      name: 'second ÷ first', never: false, ratio,
      words: (column, expert) => views.slice(0, 2).map((view, index) => `${recordNames[index]}: ${view.words(column, expert).join(', ')}`),
    });
  }
  return views;
}

function loadPicture() {
  for (const record of records) record.means = record.load.map((load) => load && sum(load) / load.length);
  const views = loadViews();
  let view = views[0];
  let order = null;  // by layer: the expert in each column; null = by id
  const expertAt = (column, place) => (order && column !== null ? order[column][place] : place);
  const sortedBy = () => spec.layers.map((_, column) => Array.from({ length: spec.num_experts }, (__, expert) => expert)
    .sort((one, other) => (view.ratio(column, other) ?? 0) - (view.ratio(column, one) ?? 0)));
  const map = heatMap({
    label: 'Heat map: load of each expert, by layer, against an even share',
    rowLabels: layerLabels, numColumns: spec.num_experts, rowTitle: 'layer', columnTitle: 'expert',
    columnLabel: String,
    value: (row, place) => view.ratio(layers[row].column, expertAt(layers[row].column, place)),
    colours: () => ratioColours(view.never),
    describe: (row, place) => {
      const { layer, column, reason } = layers[row];
      if (column === null) return [`layer ${layer}`, `not recorded: ${visible(reason)}`];
      const expert = expertAt(column, place);
      const title = `layer ${layer}, expert ${expert}`;
      return view.ratio(column, expert) === null ? [title, UNKNOWN] : [title, ...view.words(column, expert)];
    },
  });
  const legend = el('div', { class: 'legend' });
  const update = (sorted) => {
    order = sorted ? sortedBy() : null;
    legend.replaceChildren();
    append(legend, ratioLegend(view.never && 'never chosen'));
    map.redraw();
  };
  append(legend, ratioLegend('never chosen'));
  let sorted = false;
  const controls = [
    views.length > 1 && choice('Show', views.map(({ name: text }, index) => [String(index), text]), (value) => {
      view = views[Number(value)];
      update(sorted);
    }),
    choice('Experts', [['id', 'by id'], ['load', 'busiest first, in each layer']], (value) => {
      sorted = value === 'load';
      update(sorted);
    }),
  ].filter(Boolean);
  const shown = records.flatMap((record, index) => record.spread.map((one, row) => [
    ...(records.length > 1 ? [recordNames[index]] : []), layerLabels[row],
    ...(one ? [times(one.imbalance), String(one.busiest), percent(one.share), count(one.never)] : [UNKNOWN, '–', '–', '–'])]));
  return picture({
    title: 'Load of experts by layer',
    caption: 'How often each expert was chosen, against an even share. Strong colours are uneven load; the strongest contrast marks experts that were never chosen.',
    controls, plot: el('div', {}, map.host, legend),
    numbers: table([...(records.length > 1 ? columnsOf(['record'], []) : []),
      ...columnsOf([], ['layer', 'busiest ÷ average', 'busiest expert', 'its share', 'never chosen'])], shown),
  });
}

function byLayerPicture({ title, caption, series, format, floor }) {
  const hasHoles = layers.some((_, row) => series.some((one) => !one.aside && !isKnown(one.values[row])));
  return picture({
    title, caption, legend: chartLegend(series, hasHoles),
    plot: chart({
      label: `${title}: chart by layer`, labels: layerLabels, xTitle: 'layer', yTitle: '', format, floor, series,
      describe: (row) => (layers[row].column === null ? [`not recorded: ${visible(layers[row].reason)}`] : []),
    }),
    numbers: table(columnsOf([], ['layer', ...series.map((one) => one.name)]),
      layerLabels.map((layer, row) => [layer, ...series.map((one) => known(format)(one.values[row]))])),
  });
}

function imbalancePicture() {
  return byLayerPicture({
    title: 'Imbalance by layer', caption: 'Busiest expert ÷ average expert. 1 is even; trainers’ MaxVio is this less 1.', format: times, floor: 1,
    series: [
      ...records.map((record, index) => ({ name: recordNames[index], look: looks[index], values: record.spread.map((one) => one?.imbalance ?? null) })),
      { name: 'reached by chance', look: 'third', dashed: true, aside: true, values: layers.map(({ column }) => (column === null ? null : chanceImbalance(records[0].valid))) },
    ],
  });
}

function reusePicture() {
  return byLayerPicture({
    title: 'Experts kept from token to token', caption: 'Share of a token’s experts that the token before it used too.', format: percent, floor: 0,
    series: [
      ...records.map((record, index) => ({ name: recordNames[index], look: looks[index], values: byLayer(record.reuse) })),
      { name: 'by chance, evenly loaded', look: 'third', dashed: true, aside: true, values: layers.map(() => spec.top_k / spec.num_experts) },
    ],
  });
}

// Balance over time.

function timePictures(record, index) {
  const { start, width, rows, imbalance } = record.windows;
  const labels = rows.map((_, window) => short(start + window * width));
  const series = [
    { name: 'most uneven layer', look: 'second', values: imbalance.map((values) => orNull(largest(values))) },
    { name: 'median layer', look: 'first', values: imbalance.map(median) },
    { name: 'reached by chance', look: 'third', dashed: true, aside: true, values: rows.map(chanceImbalance) },
  ];
  const range = (window) => `rows ${count(start + window * width)} to ${count(start + (window + 1) * width - 1)}`;
  const curves = picture({
    title: `Imbalance over time${records.length > 1 ? `: ${recordNames[index]}` : ''}`,
    caption: `Rows in the order of the file, ${plural(width, 'row')} a window.`,
    legend: chartLegend(series, rows.includes(0)),
    plot: chart({ label: 'Imbalance over time: chart by window of rows', labels, xTitle: 'from row', yTitle: 'busiest ÷ average', format: times, floor: 1, series, describe: (window) => [range(window), plural(rows[window], 'valid row')] }),
    numbers: table(columnsOf([], ['from row', 'valid rows', ...series.map((one) => one.name)]),
      rows.map((valid, window) => [count(start + window * width), count(valid), ...series.map((one) => times(one.values[window]))])),
  });
  const most = Math.max(2, ...imbalance.flat().filter(isKnown));
  const map = heatMap({
    label: 'Heat map: imbalance of each layer over time', rowLabels: layerLabels, numColumns: rows.length,
    rowTitle: 'layer', columnTitle: 'from row', columnLabel: (window) => labels[window],
    value: (row, window) => (layers[row].column === null ? null : imbalance[window][layers[row].column]),
    colours: () => imbalanceColours(most),
    describe: (row, window) => [`layer ${layers[row].layer}, ${range(window)}`,
      layers[row].column === null ? `not recorded: ${visible(layers[row].reason)}` : times(imbalance[window][layers[row].column])],
  });
  const legend = [el('span', {}, '1× even ', el('i', { class: 'ramp hot' }),  ` ${times(most)}`), key('hatch', UNKNOWN)];
  return [curves, picture({ title: 'The same by layer', caption: 'A layer that darkens to the right is losing its balance.', plot: map.host, legend })];
}

function timeSection() {
  return section('time', 'Balance over time', records.map((record, index) => (record.windows.rows.length > 0 ? timePictures(record, index)
    : none(`The ${recordNames[index]} has no valid row.`))));
}

// Agreement.

function agreementSeries(agreements) {
  const known_ = agreements.map((one) => one && agreement(one));
  return [
    { name: 'rerouted: other experts', look: 'first', bar: true, values: known_.map((one) => one?.rerouted ?? null) },
    { name: 'the same experts in another order', look: 'order', bar: true, values: known_.map((one) => one?.reordered ?? null) },
  ];
}

function agreementByLayer() {
  const agreements = byLayer(comparison.by_layer);
  return byLayerPicture({
    title: 'Disagreement by layer', caption: 'Share of decisions in which the two records differ.', format: percent, floor: 0,
    series: agreementSeries(agreements),
  });
}

function overlapByLayer() {
  return byLayerPicture({
    title: 'Overlap by layer', caption: 'Share of the first record’s experts that the second used too. “By chance” is what unrelated records with these loads would share.', format: percent, floor: 0,
    series: [
      { name: 'overlap', look: 'first', values: byLayer(comparison.by_layer).map((one) => one && agreement(one).overlap) },
      { name: 'by chance', look: 'third', dashed: true, aside: true, values: layers.map(({ column }) => (column === null ? null : chanceOverlap(column))) },
    ],
  });
}

function agreementByPosition() {
  const { start, width, windows } = comparison.by_position;
  const series = agreementSeries(windows);
  const labels = windows.map((_, index) => short(start + index * width));
  const rows = windows.map((one) => one[0]);
  return picture({
    title: 'Disagreement by position', caption: `Position of the token in its sequence, ${plural(width, 'position')} a bar. Rising bars: differences that build up along a sequence.`,
    legend: chartLegend(series, rows.includes(0)),
    plot: chart({ label: 'Disagreement by position: chart', labels, xTitle: 'from position', yTitle: '', format: percent, series, describe: (index) => [`positions ${count(start + index * width)} to ${count(start + (index + 1) * width - 1)}`, `${plural(rows[index], 'row')} compared`] }),
    numbers: table(columnsOf([], ['from position', 'rows', ...series.map((one) => one.name)]),
      rows.map((compared, index) => [count(start + index * width), count(compared), ...series.map((one) => percent(one.values[index]))])),
  });
}

function layersRerouted() {
  const histogram = histogramBins(comparison.histogram);
  const total = sum(histogram.map(([, , rows]) => rows));
  const series = [{ name: 'share of tokens', look: 'first', bar: true, values: histogram.map(([, , rows]) => rows / total) }];
  const labels = histogram.map(([first, last]) => spanLabel(first, last - first + 1));
  return picture({
    title: 'Layers rerouted per token', caption: 'In how many of its layers a token met other experts.',
    plot: chart({ label: 'Layers rerouted per token: histogram', labels, xTitle: 'layers', yTitle: '', format: percent, series, describe: (index) => [plural(histogram[index][2], 'row')] }),
    numbers: table(columnsOf([], ['layers', 'rows', 'share']), histogram.map(([, , rows], index) => [labels[index], count(rows), percent(rows / total)])),
  });
}

function agreementSection() {
  const title = 'Agreement of the two records';
  if (!comparison) return null;
  const [first, second] = records.map((record) => name(record.name));
  const intro = el('p', {}, 'First: ', first, '. Second: ', second, `. ${plural(comparison.total[0], 'row')} compared; ${count(comparison.only_a)} only in the first, ${count(comparison.only_b)} only in the second, ${count(comparison.neither)} in neither.`);
  if (comparison.total[0] === 0) return section('agreement', title, intro, none('No row is valid in both records: nothing to compare.'));
  return section('agreement', title, intro, agreementByLayer(), agreementByPosition(), layersRerouted(), overlapByLayer());
}

// Tokens.

const meter = (share) => {
  const fill = el('i');
  fill.style.width = `${share * 100}%`;
  return el('span', { class: 'meter', 'aria-hidden': 'true' }, fill);
};
const tokenText = (text) => (text === null ? el('span', { class: 'none' }, 'text not given') : el('code', {}, visible(text)));

function tokenTable() {
  if (comparison.tokens.length === 0) return none('No token id is known for any rerouted row.');
  return picture({
    title: 'By token', caption: `All rows of one token id together; the ${comparison.tokens.length === 1 ? 'one' : count(comparison.tokens.length)} with most rerouted decisions.`,
    plot: table(columnsOf(['text'], ['id', 'rows', 'rerouted decisions', 'share']), comparison.tokens.map(([token, text, sums]) => [
      tokenText(text), String(token), count(sums[0]), count(sums[5]),
      [percent(agreement(sums).rerouted), meter(agreement(sums).rerouted)]]), { 'aria-label': 'Tokens most rerouted' }),
  });
}

function rowTable() {
  if (comparison.rows.length === 0) return none('No row is rerouted.');
  return picture({
    title: 'By place', caption: 'The rows with most rerouted layers.',
    plot: table(columnsOf(['sequence', 'text'], ['position', 'token id', 'layers rerouted']), comparison.rows.map((row) => [
      visible(row.sequence), tokenText(row.text), count(row.position), row.token === null ? 'not known' : String(row.token),
      [`${row.rerouted} of ${spec.layers.length}`, meter(row.rerouted / spec.layers.length)]]), { 'aria-label': 'Rows most rerouted' }),
  });
}

function tokensSection() {
  if (!comparison || comparison.total[0] === 0) return null;
  return section('tokens', 'Tokens most rerouted', tokenTable(), rowTable());
}

// Versions.

function versionAgreement() {
  const agreements = comparison.by_version.map((one) => one[2]);
  const labels = comparison.by_version.map(([first, last]) => (first === null ? 'none' : spanLabel(first, last - first + 1)));
  const series = agreementSeries(agreements).map((one) => ({ ...one, bar: false }));
  return picture({
    title: 'Disagreement by policy version', caption: 'Versions of the first record, or of the second where the first carries none.',
    legend: chartLegend(series, agreements.some((one) => one[0] === 0)),
    plot: chart({ label: 'Disagreement by policy version: chart', labels, xTitle: 'version', yTitle: '', format: percent, series, describe: (index) => [`${plural(agreements[index][0], 'row')} compared`] }),
    numbers: table(columnsOf(['version'], ['rows', ...series.map((one) => one.name), 'overlap']), labels.map((label, index) => [
      label, count(agreements[index][0]), ...series.map((one) => percent(one.values[index])), percent(agreement(agreements[index]).overlap)])),
  });
}

function versionBalance(record, index) {
  const { start, width, rows, imbalance } = record.version_windows;
  if (rows.length === 0) return none(`Rows of the ${recordNames[index]} carry no policy version.`);
  const labels = rows.map((_, window) => spanLabel(start + window * width, width));
  const series = [
    { name: 'most uneven layer', look: 'second', values: imbalance.map((values) => orNull(largest(values))) },
    { name: 'median layer', look: 'first', values: imbalance.map(median) },
    { name: 'reached by chance', look: 'third', dashed: true, aside: true, values: rows.map(chanceImbalance) },
  ];
  return picture({
    title: `Imbalance by policy version${records.length > 1 ? `: ${recordNames[index]}` : ''}`, caption: 'Busiest expert ÷ average expert.',
    legend: chartLegend(series, rows.includes(0)),
    plot: chart({ label: 'Imbalance by policy version: chart', labels, xTitle: 'version', yTitle: 'busiest ÷ average', format: times, floor: 1, series, describe: (window) => [plural(rows[window], 'valid row')] }),
    numbers: table(columnsOf(['version'], ['valid rows', ...series.map((one) => one.name)]), labels.map((label, window) => [
      label, count(rows[window]), ...series.map((one) => times(one.values[window]))])),
  });
}

function versionsSection() {
  const hasVersions = records.some((record) => record.version_windows.rows.length > 0);
  if (!hasVersions) return section('versions', 'Policy versions', none('No row carries a policy version.'));
  return section('versions', 'Policy versions', comparison && comparison.by_version.length > 0 && versionAgreement(), records.map(versionBalance));
}

// Sizes.

function sizeTable(record, index) {
  const perRow = (size) => (record.rows > 0 ? bytes(size / record.rows) : '–');
  const forms = [
    ['ids as kept, 1 or 2 bytes each', record.bytes.narrow],
    ['ids bit-packed', record.bytes.bitpacked],
    ['ids as int32', record.bytes.int32],
  ];
  const rows = [
    ['the file', record.file_bytes], ...record.parts.map(([part, size]) => [['in the file: ', el('code', {}, visible(part))], size]), ...forms,
  ];
  const most = Math.max(1, ...rows.map(([, size]) => size ?? 0));
  return picture({
    title: `Sizes${records.length > 1 ? `: ${recordNames[index]}` : ''}`, caption: ['Of ', name(record.name), '. The forms of ids are what all rows take, missing ones too.'],
    plot: table(columnsOf([''], ['size', 'per row']), rows.map(([text, size]) => [
      text, isKnown(size) ? [bytes(size), meter(size / most)] : 'not known', isKnown(size) ? perRow(size) : '–']), { 'aria-label': 'Sizes' }),
  });
}

function contentTable() {
  const rows = [
    ['sequences', ...records.map((record) => count(record.sequences))],
    ['rows', ...records.map((record) => count(record.rows))],
    ['valid rows', ...records.map((record) => count(record.valid))],
    ['missing rows', ...records.map((record) => (record.missing.length === 0 ? 'none' : record.missing.map(([reason, rows]) => `${count(rows)} ${reason.replaceAll('_', ' ')}`).join(', ')))],
    ['policy versions', ...records.map(({ num_versions, versions }) => (num_versions > versions.length ? `${count(num_versions)} different` : versions.map(([version, rows]) => `${versionLabel(version)} (${plural(rows, 'row')})`).join(', ')) || 'none')],
  ];
  return picture({ title: 'Contents', caption: 'Missing rows were never recorded, or refused; they stand in no picture as zero.', plot: table(columnsOf(['', ...recordNames], []), rows, { 'aria-label': 'Contents' }) });
}
