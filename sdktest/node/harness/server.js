// A Perigee server in a process of its own, with a data directory that goes when
// the server does.

import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import { until, within } from './wait.js';

const run = promisify(execFile);

const binary = path.resolve(process.env.PERIGEE_BIN
  ?? fileURLToPath(new URL('../../../bin/perigee', import.meta.url)));

// Below the range that systems take the ports of outgoing connections from: a
// port must still be free when a killed server wants it back.
const FIRST_PORT = 20_000;
const LAST_PORT = 32_000;

// Push consumers finish their long polls before they stop.
const DEFAULTS = { '--long-polling-max': '2s' };

const LOG_LINES = 300;

export class Server {
  #flags;
  #child;
  #log = [];

  constructor(flags, dataDir, ports) {
    this.dataDir = dataDir;
    this.port = ports[0];
    this.httpPort = ports[1];
    this.#flags = Object.entries({
      ...DEFAULTS,
      ...(typeof flags === 'function' ? flags(ports[0]) : flags),
      '--data-dir': dataDir,
      '--grpc-listen': `127.0.0.1:${ports[0]}`,
      '--http-listen': `127.0.0.1:${ports[1]}`,
    }).map(([ name, value ]) => `${name}=${value}`);
  }

  /**
   * Starts a server on free ports and waits until it is ready. flags are those of
   * the standalone command, or a function from the port of the clients to them.
   */
  static async start(flags = {}) {
    const dataDir = await mkdtemp(path.join(tmpdir(), 'perigee-node-'));
    for (let left = 5; ; left--) {
      const server = new Server(flags, dataDir, [ await freePort(), await freePort() ]);
      try {
        await server.restart();
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

  /** What clients connect to. */
  get endpoint() {
    return `127.0.0.1:${this.port}`;
  }

  /** The last lines that the server wrote, over all its lives. */
  get log() {
    return this.#log.join('\n');
  }

  /** Starts the server again on the same ports with the same data. */
  async restart() {
    const child = spawn(binary, [ 'standalone', ...this.#flags ], { stdio: [ 'ignore', 'pipe', 'pipe' ] });
    this.#child = child;
    const orphaned = () => child.kill('SIGKILL');
    process.once('exit', orphaned);
    child.on('exit', () => process.removeListener('exit', orphaned));
    child.on('error', err => this.#keep(`cannot run ${binary}: ${err.message}`));
    child.on('exit', (code, signal) => this.#keep(`-- ended with ${signal ?? code}`));
    for (const stream of [ child.stdout, child.stderr ]) {
      stream.setEncoding('utf8');
      stream.on('data', text => text.trimEnd().split('\n').forEach(line => this.#keep(line)));
    }
    await until(`http://127.0.0.1:${this.httpPort}/readyz`, async () => {
      if (!this.#running()) return 'ended';
      return (await fetch(`http://127.0.0.1:${this.httpPort}/readyz`)).ok;
    });
    if (!this.#running()) throw new Error('the server ended while it started');
  }

  /** Ends the process in order. It must do so, and without an error. */
  async stop() {
    const child = this.#child;
    if (!this.#running()) return;
    const gone = once(child, 'exit');
    child.kill('SIGTERM');
    const [ code, signal ] = await within('the server to stop', gone);
    if (code !== 0) throw new Error(`the server stopped with ${signal ?? code}:\n${this.log}`);
  }

  /** Ends the process as a crash would, and waits until it is gone. */
  async kill() {
    const child = this.#child;
    if (!child || !this.#running()) return;
    const gone = once(child, 'exit');
    child.kill('SIGKILL');
    await gone;
  }

  /** Deletes the data directory. */
  async remove() {
    await rm(this.dataDir, { recursive: true, force: true });
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

  /** The value of a metric, summed over its labels. */
  async metric(name) {
    const text = await (await fetch(`http://127.0.0.1:${this.httpPort}/metrics`)).text();
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

  #running() {
    return this.#child.pid !== undefined && this.#child.exitCode === null && this.#child.signalCode === null;
  }

  #keep(line) {
    this.#log.push(line);
    if (this.#log.length > LOG_LINES) this.#log.shift();
  }
}

const taken = new Set();

async function freePort() {
  for (;;) {
    const port = FIRST_PORT + Math.floor(Math.random() * (LAST_PORT - FIRST_PORT));
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
