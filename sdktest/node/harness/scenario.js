// A test with a server and clients of its own. When it fails, what the server
// and the clients logged is printed; when it ends, all of them end.

import { test } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { format } from 'node:util';

import { Inbox } from './inbox.js';
import { LitePushConsumerImpl, Producer, PushConsumer, SimpleConsumer } from './sdk.js';
import { Server } from './server.js';
import { until, within } from './wait.js';

/** Set to leave out what takes long. */
export const short = ![ undefined, '', '0' ].includes(process.env.SHORT);

const CLIENT_LOG_LINES = 100;

// A client that stops ends its telemetry stream, listens to it no more, and does
// not wait for it. If the connection broke before the server saw the end, the
// stream's error would be nobody's and end the process.
const STREAMS_END = 300;

/**
 * What scenarios say that are about what one shard promises: the order of what lies in
 * different queues, the number of a queue or its offsets, what one receive finds.
 */
export const oneShard = { stores: 1 };

/** Declares a test. For flags and deployment see Server.start; body gets the Scenario. */
export function scenario(name, flags, body, deployment) {
  test(name, { timeout: 180_000 }, async () => {
    const server = await Server.start(flags, deployment);
    const s = new Scenario(server);
    try {
      await body(s);
      await s.end();
      await server.stop();
    } catch (err) {
      console.error(`--- ${name}: server\n${server.log}\n--- clients\n${s.clientLog}\n---`);
      throw err;
    } finally {
      await s.end();
      await server.kill();
      await server.remove();
    }
  });
}

export class Scenario {
  #clients = [];
  #ends = [];
  #log = [];

  constructor(server) {
    this.server = server;
  }

  get clientLog() {
    return this.#log.join('\n');
  }

  /** Registers what has to end with the test, after the clients. */
  onEnd(end) {
    this.#ends.push(end);
  }

  /** Registers a client to shut down with the test. */
  owns(client) {
    this.#clients.push(client);
  }

  /** Ends what was registered, and tolerates what does not end well. */
  async end() {
    const clients = this.#clients.splice(0);
    await Promise.allSettled(clients.map(c => within('a client to stop', c.shutdown(), 10_000)));
    if (clients.length > 0) await pause(STREAMS_END);
    await Promise.allSettled(this.#ends.splice(0).map(end => end()));
  }

  async producer(options = {}) {
    return await this.#startup(new Producer({ ...this.#common(), ...options }));
  }

  /** filters is a topic, or an object from topics to filters. */
  async simpleConsumer(consumerGroup, filters, options = {}) {
    return await this.#startup(new SimpleConsumer({
      ...this.#common(), consumerGroup, subscriptions: subscriptions(filters), awaitDuration: 1000, ...options,
    }));
  }

  /** Starts a push consumer and returns its inbox. For decide see Inbox. */
  async pushConsumer(consumerGroup, filters, decide, options = {}) {
    const inbox = new Inbox();
    await this.#startup(new PushConsumer({
      ...this.#common(), consumerGroup, subscriptions: subscriptions(filters), messageListener: inbox.listener(decide), ...options,
    }));
    return inbox;
  }

  /** Starts a lite push consumer of a LITE topic. It subscribes to nothing. */
  async litePushConsumer(consumerGroup, bindTopic, decide, options = {}) {
    const inbox = new Inbox();
    const client = await this.#startup(new LitePushConsumerImpl({
      ...this.#common(), consumerGroup, bindTopic, messageListener: inbox.listener(decide), ...options,
    }));
    return { inbox, client };
  }

  async #startup(client) {
    this.owns(client);
    await within('a client to start', client.startup());
    return client;
  }

  #common() {
    const keep = level => (...args) => {
      this.#log.push(`${new Date().toISOString()} ${level} ${format(...args)}`);
      if (this.#log.length > CLIENT_LOG_LINES) this.#log.shift();
    };
    return {
      endpoints: this.server.endpoint,
      requestTimeout: 15_000, // the SDK's own three seconds can be short on a busy machine
      logger: { debug() {}, info() {}, warn: keep('WARN'), error: keep('ERROR') },
    };
  }
}

/** Receives until n messages are there and returns them. Nothing is acknowledged. */
export async function receive(consumer, n, { batch = 32, invisible = 30_000, patience } = {}) {
  const views = [];
  await until(`${n} messages`, async () => {
    views.push(...await consumer.receive(batch, invisible));
    return views.length >= n;
  }, patience);
  return views;
}

/** n different bodies. */
export function bodies(n, prefix = 'message') {
  return Array.from({ length: n }, (_, i) => `${prefix} ${i}`);
}

function subscriptions(filters) {
  return new Map(typeof filters === 'string' ? [ [ filters, '*' ] ] : Object.entries(filters));
}
