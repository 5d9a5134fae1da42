// The page of a running job: asks the chief for facts, and shows them.
//
// All text is set as text, never as HTML. The history is bounded here as the
// chief bounds it. When the chief no longer answers, the last state stays.
'use strict';

const MAX_MOMENTS = 900;
const MAX_LINES = 8; // of a plot; more are summed up
const TIMEOUT_MS = 30_000;
const COLOURS = [
  '#3273dc', '#e0861f', '#2aa876', '#b44fc0', '#d14b52', '#6f7d8c', '#a89000',
  '#20a4c4', '#8b6fe0',
];

let moments = [];
let everyMs = 2000;
let silentSince = null;
const plots = new Map(); // by the identifier of the element
const tiles = new Map(); // by the name of the task

const byId = (id) => document.getElementById(id);

function element(tag, text = '', className = '') {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function number(value, digits = 1) {
  if (value === null || value === undefined) return '-';
  if (typeof value !== 'number') return String(value);
  return value.toLocaleString('en', {
    maximumFractionDigits: Math.abs(value) >= 100 ? 0 : digits,
  });
}

function bytes(value) {
  if (value === null || value === undefined) return '-';
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let scale = 0;
  while (value >= 1000 && scale < units.length - 1) {
    value /= 1000;
    scale += 1;
  }
  return `${Number(value.toPrecision(3))} ${units[scale]}`;
}

const clock = (at) => new Date(1000 * at).toLocaleTimeString('en-GB');

async function poll() {
  try {
    const after = moments.length ? moments[moments.length - 1].at : 0;
    const response = await fetch(`data?after=${after}`, {
      cache: 'no-store',
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    if (response.ok) {
      show(await response.json());
    } else {
      showState('is-silent', await response.text());
    }
  } catch (error) {
    showSilence();
    if (!(error instanceof TypeError || error.name === 'TimeoutError')) {
      console.error(error);
    }
  }
  setTimeout(poll, everyMs);
}

function showState(className, text) {
  document.body.className = className;
  byId('state').textContent = text;
}

function showSilence() {
  silentSince ??= Date.now() / 1000;
  if (document.body.classList.contains('is-over')) return;
  showState(
    'is-silent',
    `No answer from the chief since ${clock(silentSince)}: the job has ended, ` +
      'or its chief is lost. ' +
      (moments.length ? 'This is the last state.' : ''),
  );
}

function show(facts) {
  silentSince = null;
  everyMs = 1000 * (facts.every_secs ?? 2);
  moments = [...moments, ...facts.history].slice(-MAX_MOMENTS);
  if (!facts.tasks) {
    showState('is-over', 'Training is over, and nobody had looked at it.');
    return;
  }
  if (facts.is_over) {
    showState('is-over', 'Training is over. This is the last state.');
  } else {
    showState('', `Training, as of ${clock(facts.at)}.`);
  }
  byId('program').textContent = facts.configuration.program ?? '';
  document.title = `tfps ${facts.configuration.program ?? ''}`;
  showValues(facts);
  showPlots();
  showPairs('configuration', Object.entries(facts.configuration));
  showBuckets(facts.staleness);
  showTasks(facts.tasks, facts.placement);
  showEvents(facts.events);
}

function showPairs(id, pairs) {
  byId(id).replaceChildren(
    ...pairs.flatMap(([name, value]) => [
      element('dt', name),
      element('dd', value),
    ]),
  );
}

function showValues(facts) {
  const alive = facts.tasks.filter((task) => task.state === 'alive').length;
  const steps = moments.length
    ? sum(Object.values(moments[moments.length - 1].steps_per_sec))
    : null;
  const pairs = [
    ['tasks alive', `${alive} of ${facts.tasks.length}`],
    ['steps per second', number(steps)],
    ...Object.entries(facts.values).map(([n, v]) => [n, number(v, 4)]),
  ];
  byId('values').replaceChildren(
    ...pairs.map(([name, value]) => {
      const pair = element('div');
      pair.append(element('dt', name), element('dd', value));
      return pair;
    }),
  );
}

function sum(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((a, b) => a + b, 0) : null;
}

function extreme(choose, values) {
  const known = values.filter((value) => value !== null);
  return known.length ? choose(...known) : null;
}

// Returns the lines of a plot as pairs of a label and a value for each moment.
function lines(name, total) {
  const byLabel = moments.map((moment) => moment[name]);
  const labels = [...new Set(byLabel.flatMap((found) => Object.keys(found)))];
  const sums = byLabel.map((found) => sum(Object.values(found)));
  if (labels.length > MAX_LINES) {
    const ends = (choose) =>
      byLabel.map((found) => extreme(choose, Object.values(found)));
    return [
      [`all ${labels.length}`, sums],
      ['most', ends(Math.max)],
      ['least', ends(Math.min)],
    ];
  }
  const each = labels.map((label) => [
    label,
    byLabel.map((found) => found[label] ?? null),
  ]);
  return total && labels.length > 1 ? [['all', sums], ...each] : each;
}

function showPlots() {
  draw('steps', lines('steps_per_sec', true), number);
  draw('bytes', lines('bytes_per_sec', false), bytes);
  draw('staleness', [['mean', moments.map((each) => each.staleness)]], number);
}

function draw(id, found, format) {
  const key = found.map(([label]) => label).join();
  const data = [
    moments.map((moment) => moment.at),
    ...found.map(([, values]) => values),
  ];
  const before = plots.get(id);
  if (before && before.key === key) {
    before.plot.setData(data);
  } else {
    before?.plot.destroy();
    const labels = found.map(([label]) => label);
    plots.set(id, { key, plot: plot(byId(id), labels, data, format) });
  }
  const shown = plots.get(id).plot;
  if (!(shown.cursor.left >= 0)) shown.setLegend({ idx: moments.length - 1 });
}

function plot(place, labels, data, format) {
  const colour = (name) => () =>
    getComputedStyle(document.body).getPropertyValue(name);
  const axis = {
    stroke: colour('--muted'),
    grid: { stroke: colour('--line'), width: 1 },
    ticks: { stroke: colour('--line'), width: 1 },
  };
  const options = {
    width: place.clientWidth,
    height: 220,
    scales: { y: { range: (_, least, most) => [0, 1.1 * most || 1] } },
    axes: [
      { ...axis, space: 90, values: (_, ticks) => ticks.map(clock) },
      { ...axis, size: 70, values: (_, ticks) => ticks.map((v) => format(v)) },
    ],
    series: [
      { value: (_, at) => (at === null ? '-' : clock(at)), label: 'Time' },
      ...labels.map((label, index) => ({
        label,
        stroke: COLOURS[index % COLOURS.length],
        width: 1.5,
        spanGaps: false,
        value: (_, value) => format(value),
      })),
    ],
  };
  return new uPlot(options, data, place);
}

function showBuckets(buckets) {
  const total = sum(buckets.map(([, count]) => count));
  const found = buckets.filter(([, count]) => count > 0);
  byId('buckets').replaceChildren(
    ...found.flatMap(([bound, count]) => {
      const bar = element('progress');
      bar.max = total;
      bar.value = count;
      const cell = element('dd');
      cell.append(bar);
      return [
        element('dt', bound === null ? 'more' : `up to ${number(bound)}`),
        cell,
        element('dd', number(count)),
      ];
    }),
  );
}

function showTasks(tasks, placement) {
  const byJob = new Map();
  for (const task of tasks) {
    const job = task.task.split(':')[0];
    byJob.set(job, [...(byJob.get(job) ?? []), task]);
  }
  const groups = [...byJob].map(([job, members]) => group(job, members.length));
  byId('cluster').replaceChildren(...groups);
  for (const task of tasks) {
    const tile = tiles.get(task.task) ?? newTile(task.task);
    fillTile(tile, task, placement[task.task]);
    byId(`job-${task.task.split(':')[0]}`).append(tile);
  }
}

function group(job, size) {
  const made = element('div');
  const members = element('div', '', size > 20 ? 'tasks many' : 'tasks');
  members.id = `job-${job}`;
  made.append(element('h3', `${job} (${size})`), members);
  return made;
}

function newTile(name) {
  const tile = element('article', '', 'task');
  for (const part of ['name', 'state', 'rates', 'place', 'doing', 'event']) {
    tile.append(element('p', '', part));
  }
  tile.querySelector('.name').textContent = name;
  tiles.set(name, tile);
  return tile;
}

function fillTile(tile, task, held) {
  const set = (part, text) => {
    const line = tile.querySelector(`.${part}`);
    line.textContent = text;
    line.title = text;
    line.hidden = text === '';
  };
  tile.classList.toggle('lost', task.state !== 'alive');
  set('state', task.state);
  set('rates', rates(task));
  set('place', place(task));
  set('doing', task.doing);
  set('event', task.event && `last event: ${task.event}`);
  if (held) fillHeld(tile, held);
}

function rates(task) {
  return [
    [task.steps_per_sec, (value) => `${number(value)} steps/s`],
    [task.lag, (value) => `${number(value)} behind`],
    [task.bytes_per_sec, (value) => `${bytes(value)}/s`],
    [task.memory_bytes, (value) => `${bytes(value)} memory`],
  ]
    .filter(([value]) => value !== null)
    .map(([value, format]) => format(value))
    .join(', ');
}

function place(task) {
  const process = task.pid ? `process ${task.pid} on ${task.host}` : '';
  return [task.address, process].filter(Boolean).join(', ');
}

// Shows what is on a ps; its list stays open or closed.
function fillHeld(tile, held) {
  let details = tile.querySelector('details');
  if (!details) {
    details = element('details');
    details.append(element('summary'), element('ul'));
    tile.append(details);
  }
  const replicas = held.replica_bytes
    ? ` and ${bytes(held.replica_bytes)} of replicas`
    : '';
  details.firstChild.textContent =
    `${number(held.num_variables)} variables, ${bytes(held.num_bytes)}` +
    replicas;
  const left = held.num_variables - held.variables.length;
  const names = left
    ? [...held.variables, `and ${number(left)} more`]
    : held.variables;
  details.lastChild.replaceChildren(...names.map((n) => element('li', n)));
}

function showEvents(events) {
  const rows = [...events].reverse().map((event) => {
    const row = element('tr');
    row.append(
      element('td', clock(event.at)),
      element('td', event.text),
      element('td', event.told_by || 'answers of the tasks'),
    );
    return row;
  });
  byId('events').replaceChildren(...rows);
}

new ResizeObserver(() => {
  for (const [id, { plot }] of plots) {
    plot.setSize({ width: byId(id).clientWidth, height: 220 });
  }
}).observe(document.body);

poll();
