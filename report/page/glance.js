// At a glance: four cards, each a number, a word and the finding behind it.

function card({ title, target, big, unit, tag, findings }) {
  return el('div', { class: 'card' },
    el('h3', {}, target ? el('a', { href: `#${target}` }, title) : title),
    el('div', { class: 'big' }, big, tag && el('span', { class: `tag ${tag[0]}` }, tag[1])),
    el('p', {}, unit),
    findings.filter(Boolean).map((finding) => el('p', { class: 'finding' }, finding)));
}

function loadOf(record) {
  const imbalances = record.spread.map((one) => one?.imbalance ?? null);
  const worst = imbalances.indexOf(orNull(largest(imbalances)));
  return {
    middle: median(imbalances),
    worst: worst < 0 ? null : layers[worst].layer,
    most: orNull(largest(imbalances)),
    never: sum(record.spread.map((one) => one?.never ?? 0)),
    chance: chanceImbalance(record.valid),
  };
}

function loadTag({ middle, most, chance }) {
  const even = Math.max(1.5, chance);
  if (middle <= even && most <= 2 * even) return ['good', '✓ even'];
  return middle <= 2 * even ? ['warn', '! uneven'] : ['bad', '✗ very uneven'];
}

function loadCard() {
  const loads = records.map(loadOf);
  const [first, second] = loads;
  const title = 'Is the load balanced?';
  if (first.middle === null) {
    return card({ title, target: 'load', big: '–', unit: `no row of ${records.length > 1 ? 'the first record' : 'the record'} is valid`, findings: [] });
  }
  const experts = spec.num_experts * spec.layers.length;
  return card({
    title, target: 'load', big: times(first.middle), tag: loadTag(first),
    unit: 'busiest expert ÷ average expert, in the median layer',
    findings: [
      `Most uneven: layer ${first.worst} at ${times(first.most)}.`,
      first.never > 0 ? `${count(first.never)} of ${plural(experts, 'expert')} never chosen.` : 'Every expert was chosen.',
      first.chance > 1.5 && `Few rows: chance alone reaches about ${times(first.chance)}.`,
      second && (second.middle === null ? 'The second record has no valid row.'
        : `The second record: ${times(second.middle)}, at most ${times(second.most)} (layer ${second.worst}).`),
    ],
  });
}

function whereRerouted() {
  const shares = byLayer(comparison.by_layer).map((one) => one && agreement(one).rerouted);
  const found = outstanding(layerLabels, shares);
  if (!(largest(shares) > 0)) return null;
  if (found.length === 0) {
    return `Over all layers alike, most at layer ${layerLabels[shares.indexOf(largest(shares))]} (${percent(largest(shares))}).`;
  }
  return `Stands out: ${found.map(({ label, value }) => `layer ${label} (${percent(value)})`).join(', ')}.`;
}

const isByChance = () => {
  const overlaps = comparison.by_layer.map((one) => agreement(one).overlap);
  const chances = overlaps.map((_, column) => chanceOverlap(column));
  const middle = median(chances);
  return isKnown(middle) && middle < 0.8 && agreement(comparison.total).overlap < middle + 0.25 * (1 - middle);
};

function agreementCard() {
  const title = 'Do the records agree?';
  if (!comparison) {
    return card({ title, big: '–', unit: records.length > 1 ? 'the records were not compared' : 'one record only', findings: ['Give a second record of the same tokens to see where they differ.'] });
  }
  const total = agreement(comparison.total);
  if (total.rows === 0) {
    return card({ title, target: 'agreement', big: '–', tag: ['bad', '✗ nothing in common'], unit: 'no row is valid in both records', findings: [] });
  }
  const byChance = isByChance();
  const tag = () => {
    if (byChance) return ['bad', '✗ unrelated'];
    if (total.rerouted === 0) return ['good', total.reordered === 0 ? '✓ equal' : '✓ equal but for order'];
    return total.rerouted <= 0.15 ? ['warn', '! some drift'] : ['bad', '✗ they differ'];
  };
  const lost = comparison.only_a + comparison.only_b;
  return card({
    title, target: 'agreement', big: percent(total.rerouted), tag: tag(),
    unit: 'of router decisions are rerouted: another set of experts',
    findings: [
      byChance && 'No better than chance: rows or layers may be shifted.',
      `${percent(total.reroutedRows)} of tokens at one layer or more; overlap of experts ${percent(total.overlap)}.`,
      whereRerouted(),
      lost > 0 && `${plural(lost, 'row')} in one record only.`,
    ],
  });
}

function change(what, format, values) {
  const [from, to] = ends(values) ?? [null, null];
  if (from === null) return null;
  const verb = Math.abs(to - from) <= 0.15 * Math.max(from, to) ? 'hardly change' : to > from ? 'rise' : 'fall';
  return `${what} ${verb}: ${format(from)} → ${format(to)}.`;
}

const windowImbalances = (windows) => windows.imbalance.map((values) => median(values));

function versionsCard() {
  const title = 'Does it change with the policy?';
  const { num_versions, first_version, last_version, version_windows } = records[0];
  if (num_versions === 0) {
    return card({ title, target: 'versions', big: '–', unit: 'rows carry no policy version', findings: [] });
  }
  if (num_versions === 1) {
    return card({ title, target: 'versions', big: versionLabel(first_version), unit: 'the only policy version', findings: [] });
  }
  const rerouted = comparison?.by_version.filter(([first]) => first !== null).map((one) => agreement(one[2]).rerouted);
  return card({
    title, target: 'versions', big: `${versionLabel(first_version)} → ${versionLabel(last_version)}`,
    unit: plural(num_versions, 'policy version'),
    findings: [
      rerouted && change('Rerouted decisions', percent, rerouted),
      change('Imbalances', times, windowImbalances(version_windows)),
    ],
  });
}

function completenessCard() {
  const [first, second] = records;
  const share = first.rows > 0 ? first.valid / first.rows : null;
  const why = (record) => record.missing.map(([reason, rows]) => `${reason.replaceAll('_', ' ')} ${count(rows)}`).join(', ');
  const lack = (record) => (record.rows === record.valid ? 'none missing'
    : `${plural(record.rows - record.valid, 'row')} missing (${why(record)})`);
  return card({
    title: 'Is the record complete?', target: 'sizes', big: share === null ? '–' : percent(share),
    tag: first.rows > 0 && (share === 1 ? ['good', '✓ complete'] : ['warn', '! rows missing']),
    unit: share === null ? `no rows in ${plural(first.sequences, 'sequence')}` : `of ${plural(first.rows, 'row')} in ${plural(first.sequences, 'sequence')} are valid`,
    findings: [
      first.rows > first.valid && `${lack(first)}.`,
      second && `The second record: ${plural(second.rows, 'row')}, ${lack(second)}.`,
    ],
  });
}
