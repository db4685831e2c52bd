// A Perigee server in a process of its own, with a data directory that goes when
// the server does. With PERIGEE_TIERS set it is a deployment: a router, store nodes
// and a proxy, each in a process of its own.

import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import { Balancer, host, hosts } from './hosts.js';
import { until, within } from './wait.js';

const run = promisify(execFile);

const binary = path.resolve(process.env.PERIGEE_BIN
  ?? fileURLToPath(new URL('../../../bin/perigee', import.meta.url)));

// Below the range that systems take the ports of outgoing connections from: a
// port must still be free when a killed server wants it back.
const FIRST_PORT = 20_000;
const LAST_PORT = 32_000;

const DEFAULTS = {
  // Push consumers finish their long polls before they stop.
  '--long-polling-max': '2s',
  // On a disk that others fill a server removes messages early, and refuses them.
  '--retention-disk-clean': '192MiB free',
  '--retention-disk-force': '128MiB free',
  '--retention-disk-refuse': '64MiB free',
};

const LOG_LINES = 300;

// What else is on the disk is no part of a test: a store removes nothing and refuses
// nothing for want of space.
const KEEP_ALL = { '--retention-disk-clean': '100%', '--retention-disk-force': '100%', '--retention-disk-refuse': '100%' };

/** Whether servers are deployments. */
export const tiers = ![ undefined, '', '0' ].includes(process.env.PERIGEE_TIERS);

// The flags of the standalone command, by the beginning of their names, that are not
// those of the proxy.
const FLAGS_OF = {
  '--auto-create-': 'router',
  '--default-queues': 'router',
  '--flush': 'store',
  '--lite-topics': 'store',
  '--max-waiting-receives': 'store',
  '--metrics-max-topics': 'store',
  '--retention-': 'store',
  '--segment-size': 'store',
  '--transactions-': 'store',
};

function tierOf(flag) {
  return Object.entries(FLAGS_OF).find(([ prefix ]) => flag.startsWith(prefix))?.[1] ?? 'proxy';
}

// One process of a server.
class Part {
  #args;
  #child;
  #inside;
  #keep;

  /** inside is what runs commands on the host of the process, nothing on this one. */
  constructor(tier, flags, dataDir, http, keep, inside = []) {
    this.tier = tier;
    this.http = http;
    this.#inside = inside;
    this.#keep = keep;
    this.#args = [ tier, ...Object.entries({
      ...[ 'store', 'standalone' ].includes(tier) && KEEP_ALL,
      ...flags, '--data-dir': dataDir, '--http-listen': http,
    }).map(([ name, value ]) => `${name}=${value}`) ];
  }

  get running() {
    return this.#child?.pid !== undefined && this.#child.exitCode === null && this.#child.signalCode === null;
  }

  async start() {
    const [ command, ...args ] = [ ...this.#inside, binary, ...this.#args ];
    const child = spawn(command, args, { stdio: [ 'ignore', 'pipe', 'pipe' ] });
    this.#child = child;
    const orphaned = () => child.kill('SIGKILL');
    process.once('exit', orphaned);
    child.on('exit', () => process.removeListener('exit', orphaned));
    child.on('error', err => this.#keep(`cannot run ${binary}: ${err.message}`));
    child.on('exit', (code, signal) => this.#keep(`-- ${this.tier} ended with ${signal ?? code}`));
    for (const stream of [ child.stdout, child.stderr ]) {
      stream.setEncoding('utf8');
      stream.on('data', text => text.trimEnd().split('\n').forEach(line => this.#keep(line)));
    }
    const ready = `http://${this.http}/readyz`;
    await until(ready, async () => {
      if (!this.running) return 'ended';
      return (await fetch(ready)).ok;
    });
    if (!this.running) throw new Error(`the ${this.tier} ended while it started`);
  }

  /** Ends the process with a signal, and returns how it ended; undefined when it had. */
  async end(signal) {
    if (!this.running) return undefined;
    const gone = once(this.#child, 'exit');
    this.#child.kill(signal);
    return signal === 'SIGKILL' ? await gone : await within(`the ${this.tier} to stop`, gone);
  }

  async metrics() {
    return await (await fetch(`http://${this.http}/metrics`)).text();
  }
}

export class Server {
  #balancer;
  #log = [];
  #parts; // in the order in which they start
  #proxies; // their addresses, with hosts
  #root;

  constructor(flags, stores, root, ports) {
    this.#root = root;
    this.port = ports[0];
    /** On how many shards a topic is. */
    this.shards = stores || 1;
    /** The data of the process that clients are connected to, or of the first one. */
    this.dataDir = stores ? path.join(root, hosts ? 'proxy0' : 'proxy') : root;
    const clients = { '--grpc-listen': `127.0.0.1:${ports[0]}` };
    const given = Object.entries({ ...DEFAULTS, ...(typeof flags === 'function' ? flags(ports[0]) : flags) });
    const left = ports.slice(1);
    const part = (tier, dataDir, ...groups) => new Part(tier, Object.assign({}, ...groups), dataDir, `127.0.0.1:${left.shift()}`, line => this.#keep(line));
    if (!stores) {
      this.#parts = [ part('standalone', root, Object.fromEntries(given), clients) ];
      return;
    }
    const of = tier => Object.fromEntries(given.filter(([ name ]) => tierOf(name) === tier));
    if (hosts) {
      this.#spread(stores, of);
      return;
    }
    const router = `127.0.0.1:${left.shift()}`;
    this.#parts = [
      part('router', path.join(root, 'router'), of('router'), { '--listen': router }),
      ...Array.from({ length: stores }, (_, i) => String.fromCharCode(97 + i)).map(name => {
        const listen = `127.0.0.1:${left.shift()}`;
        return part('store', path.join(root, name), of('store'), { '--name': name, '--router': router, '--listen': listen });
      }),
      part('proxy', this.dataDir, of('proxy'), { '--router': router }, clients),
    ];
  }

  // The parts of a deployment, each on its host. Ports are drawn by chance, as several
  // deployments share the hosts.
  #spread(stores, of) {
    const at = (tier, i) => `${host(tier, i).address}:${anyPort()}`;
    const part = (tier, i, flags) => new Part(tier, { ...of(tier), ...flags }, path.join(this.#root, `${tier}${i}`), at(tier, i),
      line => this.#keep(line), host(tier, i).inside);
    const times = (n, make) => Array.from({ length: n }, (_, i) => make(i));
    const routers = times(hosts.etcd ? 3 : 1, i => at('router', i));
    const shared = hosts.etcd ? { '--etcd': hosts.etcd, '--etcd-prefix': `/${path.basename(this.#root)}` } : {};
    this.#proxies = times(2, i => at('proxy', i));
    const known = { '--router': routers.join(',') };
    this.#parts = [
      ...routers.map((address, i) => part('router', i, { ...shared, '--listen': address })),
      ...times(stores, i => part('store', i, { ...known, '--name': String.fromCharCode(97 + i), '--listen': at('store', i) })),
      ...this.#proxies.map((address, i) => part('proxy', i, { ...known, '--name': `p${i}`, '--grpc-listen': address })),
    ];
  }

  /**
   * Starts a server on free ports and waits until it is ready. flags are those of
   * the standalone command, or a function from the port of the clients to them. stores
   * is how many store nodes there are where servers are deployments.
   */
  static async start(flags = {}, { stores = hosts ? 3 : 2 } = {}) {
    const root = await mkdtemp(path.join(tmpdir(), 'perigee-node-'));
    const nodes = tiers ? stores : 0;
    for (let left = 5; ; left--) {
      const ports = [];
      while (ports.length < 2 * nodes + 4) ports.push(await freePort());
      const server = new Server(flags, nodes, root, ports);
      try {
        await server.restart();
        if (nodes) await server.#placed(nodes);
        return server;
      } catch (err) {
        await server.kill();
        if (left === 0 || !server.log.includes('address already in use')) {
          await server.remove();
          throw new Error(`the server does not start:\n${server.log}`, { cause: err });
        }
      }
    }
  }

  /** Waits until new topics are placed on every store node, of which the router hears late. */
  async #placed(stores) {
    for (let i = 0; ; i++) {
      const { topic } = await this.command('topic', 'create', `harness-${i}`, '--tls', '--insecure');
      await this.command('topic', 'delete', `harness-${i}`, '--tls', '--insecure');
      if (topic.shards.length === stores) return;
      if (i === 200) throw new Error(`topics are placed on ${topic.shards.length} of ${stores} store nodes`);
    }
  }

  /** What clients connect to. */
  get endpoint() {
    return `127.0.0.1:${this.port}`;
  }

  /** The last lines that the server wrote, over all its lives. */
  get log() {
    return this.#log.join('\n');
  }

  /** Starts what has ended again, on the same ports with the same data. */
  async restart() {
    if (this.#proxies) this.#balancer ??= await Balancer.start(this.port, this.#proxies);
    for (const part of this.#parts) {
      if (!part.running) await part.start();
    }
  }

  /** Ends the processes in order. They must do so, and without an error. */
  async stop() {
    for (const part of this.#parts.toReversed()) {
      const [ code, signal ] = await part.end('SIGTERM') ?? [ 0 ];
      if (code !== 0) throw new Error(`the ${part.tier} stopped with ${signal ?? code}:\n${this.log}`);
    }
  }

  /** Ends all processes, or those of a tier, as a crash would, and waits until they are gone. */
  async kill(tier) {
    await Promise.all(this.#parts.filter(p => !tier || p.tier === tier).map(p => p.end('SIGKILL')));
  }

  /** Deletes the data directories. */
  async remove() {
    await this.#balancer?.close();
    this.#balancer = undefined;
    await rm(this.#root, { recursive: true, force: true });
  }

  async createTopic(name, ...flags) {
    await this.command('topic', 'create', name, ...flags);
  }

  async createGroup(name, ...flags) {
    await this.command('group', 'create', name, ...flags);
  }

  /** How many messages of a topic the group has not received, or not settled. */
  async open(group, topic) {
    const { topics } = await this.command('group', 'describe', group);
    const progress = topics.find(t => t.topic === topic);
    if (!progress) throw new Error(`group ${group} has not received from ${topic} yet`);
    return progress.ready + progress.in_flight + progress.blocked;
  }

  /** Waits until the group has settled every message of the topic. */
  async settled(group, topic, patience) {
    await until(`group ${group} to settle everything in ${topic}`, async () => await this.open(group, topic) === 0, patience);
  }

  /** How many messages each queue of the topic holds. */
  async queueSizes(topic) {
    const { queues } = await this.command('topic', 'describe', topic);
    return queues.map(q => q.max_offset - q.min_offset);
  }

  /** The value of a metric, summed over its labels and the processes that have it. */
  async metric(name) {
    const text = (await Promise.all(this.#parts.map(p => p.metrics()))).join('\n');
    const values = text.split('\n').filter(line => line.split(/[ {]/, 1)[0] === name).map(line => Number(line.split(' ').at(-1)));
    if (values.length === 0) throw new Error(`no metric ${name}`);
    return values.reduce((sum, v) => sum + v);
  }

  /** Runs a command of the server's command line and returns what it printed. */
  async command(...args) {
    const { stdout } = await run(binary, [ ...args, '--json' ], {
      env: { ...process.env, PERIGEE_ENDPOINT: this.endpoint },
      timeout: 20_000,
    });
    return JSON.parse(stdout);
  }

  #keep(line) {
    this.#log.push(line);
    if (this.#log.length > LOG_LINES) this.#log.shift();
  }
}

function anyPort() {
  return FIRST_PORT + Math.floor(Math.random() * (LAST_PORT - FIRST_PORT));
}

const taken = new Set();

async function freePort() {
  for (;;) {
    const port = anyPort();
    if (taken.has(port)) continue;
    const probe = createServer();
    try {
      await new Promise((resolve, reject) => probe.once('error', reject).listen(port, '127.0.0.1', resolve));
    } catch {
      continue;
    }
    await new Promise(resolve => probe.close(resolve));
    taken.add(port);
    return port;
  }
}
