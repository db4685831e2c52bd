// A TCP forwarder: the outside port of a server, as a container's published port
// or a balancer is one.

import { createServer, connect } from 'node:net';

export class Forwarder {
  #listener;
  #sockets = new Set();
  #target;
  #delay;

  /** delay is how long each piece of an answer is held back, in ms. */
  constructor(target, delay = 0) {
    this.#target = target;
    this.#delay = delay;
    this.#listener = createServer(client => this.#join(client));
  }

  static async start(target, delay) {
    const f = new Forwarder(target, delay);
    await new Promise((resolve, reject) => f.#listener.once('error', reject).listen(0, '127.0.0.1', resolve));
    return f;
  }

  get endpoint() {
    return `127.0.0.1:${this.#listener.address().port}`;
  }

  /** Breaks all connections. New ones are accepted. */
  drop() {
    for (const socket of this.#sockets) socket.destroy();
  }

  async close() {
    const closed = new Promise(resolve => this.#listener.close(resolve));
    this.drop();
    await closed;
  }

  #join(client) {
    const server = connect(this.#target, '127.0.0.1');
    for (const [ socket, peer ] of [ [ client, server ], [ server, client ] ]) {
      socket.setNoDelay(true);
      this.#sockets.add(socket);
      socket.on('error', () => {}); // close follows
      socket.on('close', () => {
        this.#sockets.delete(socket);
        peer.destroy();
      });
    }
    client.on('data', data => server.write(data));
    server.on('data', data => {
      if (this.#delay === 0) client.write(data);
      else setTimeout(() => client.write(data), this.#delay);
    });
  }
}
