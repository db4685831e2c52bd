// With hosts, which sdktest/hosts.sh makes, every process of a deployment is in a network
// namespace of its own, with an address of its own. Clients stay outside: a balancer on a
// loopback port leads them to the proxies.

import { createServer, connect } from 'node:net';

const { PERIGEE_HOSTS: prefix, PERIGEE_NET: net, PERIGEE_ETCD: etcd } = process.env;

/** What the environment says of the hosts; undefined without any. */
export const hosts = prefix ? { prefix, net, etcd } : undefined;

// The last byte of the address of the first host of each tier.
const FIRST = { router: 11, store: 21, proxy: 31 };

/** A host of a tier, by its number from 0 on: its address, and what runs commands on it. */
export function host(tier, number) {
  return { address: `${net}.${FIRST[tier] + number}`, inside: [ 'ip', 'netns', 'exec', `${prefix}${tier[0]}${number + 1}` ] };
}

/** Passes connections on to those of several host:port that answer, one after the other. */
export class Balancer {
  #listener;
  #next = 0;
  #sockets = new Set();
  #targets;

  constructor(targets) {
    this.#targets = targets;
    this.#listener = createServer(client => this.#join(client, this.#next++, this.#targets.length));
  }

  static async start(port, targets) {
    const b = new Balancer(targets);
    await new Promise((resolve, reject) => b.#listener.once('error', reject).listen(port, '127.0.0.1', resolve));
    return b;
  }

  async close() {
    const closed = new Promise(resolve => this.#listener.close(resolve));
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }

  #join(client, first, left) {
    this.#keep(client);
    if (left === 0 || client.destroyed) {
      client.destroy();
      return;
    }
    const [ address, port ] = this.#targets[first % this.#targets.length].split(':');
    const server = connect(Number(port), address);
    this.#keep(server);
    let reached = false;
    server.setTimeout(2000, () => reached || server.destroy());
    server.on('connect', () => {
      reached = true;
      server.setTimeout(0);
      client.pipe(server);
      server.pipe(client);
      client.on('close', () => server.destroy());
    });
    server.on('close', () => {
      if (reached) client.destroy();
      else this.#join(client, first + 1, left - 1);
    });
  }

  #keep(socket) {
    if (this.#sockets.has(socket)) return;
    this.#sockets.add(socket);
    socket.setNoDelay(true);
    socket.on('error', () => {}); // close follows
    socket.on('close', () => this.#sockets.delete(socket));
  }
}
