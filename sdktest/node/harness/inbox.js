// What a push consumer was given, in the order it came.

import { ConsumeResult } from './sdk.js';
import { until } from './wait.js';

export class Inbox {
  /** One entry for each delivery: { view, body, attempt, at }. */
  deliveries = [];

  /**
   * The listener to start a push consumer with. decide says what becomes of a
   * delivery: false is a failure, anything else success, an error is thrown on.
   */
  listener(decide = () => true) {
    return {
      consume: async view => {
        const delivery = { view, body: view.body.toString(), attempt: view.deliveryAttempt, at: Date.now() };
        this.deliveries.push(delivery);
        return await decide(delivery) === false ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    };
  }

  /** The bodies delivered, once each. */
  get bodies() {
    return new Set(this.deliveries.map(d => d.body));
  }

  /** The deliveries of one message. */
  of(body) {
    return this.deliveries.filter(d => d.body === body);
  }

  /** Waits until every one of the bodies was delivered. */
  async receives(bodies, patience) {
    const wanted = [ ...bodies ];
    await until(`${wanted.length} messages`, () => {
      const got = this.bodies;
      const missing = wanted.filter(b => !got.has(b));
      if (missing.length > 0) throw new Error(`missing: ${missing.slice(0, 10)} (${missing.length})`);
      return true;
    }, patience);
  }
}
