import assert from 'node:assert/strict';
import { setTimeout as pause } from 'node:timers/promises';

import { Forwarder } from '../harness/forwarder.js';
import { bodies, receive, scenario, short } from '../harness/scenario.js';
import { tiers } from '../harness/server.js';
import { until, within } from '../harness/wait.js';

const KILLS = short ? 1 : 4;

const kill = 'clients go on after the server was killed and started again, and nothing acknowledged is lost';
scenario(kill, { '--renew-slice': '5s' }, s => restarts(s, KILLS, async round => {
  // Everything, then what clients are connected to, then what has the messages.
  await s.server.kill(tiers ? [ undefined, 'proxy', 'store' ][round % 3] : undefined);
  await pause(500); // sends meet a dead server
}));

const stop = 'clients go on after the server was stopped in order and started again, and nothing acknowledged is lost';
scenario(stop, { '--renew-slice': '5s' }, s => restarts(s, 1, () => s.server.stop()));

/** Ends the server with end(round) and starts it again, a number of times, under clients that go on. */
async function restarts(s, times, end) {
  await s.server.createTopic('orders');
  await s.server.createGroup('workers', '--retry-delays=1s', '--max-attempts=50');
  const inbox = await s.pushConsumer('workers', 'orders', d => !(d.body.endsWith('7') && d.attempt === 1));
  const simple = await s.simpleConsumer('readers', 'orders');
  const producer = await s.producer({ topics: [ 'orders' ] });

  const accepted = new Set();
  let done = false;
  const sending = (async () => {
    for (let i = 0; !done; i++) {
      const body = `message ${i}`;
      try {
        await producer.send({ topic: 'orders', body: Buffer.from(body) });
        accepted.add(body);
        await pause(10);
      } catch {
        await pause(200); // sent or not: nothing is promised
      }
    }
  })();
  const more = n => {
    const target = accepted.size + n;
    return until(`${n} more sends`, () => accepted.size >= target, 60_000);
  };

  await more(50);
  for (let round = 0; round < times; round++) {
    await end(round);
    await s.server.restart();
    await more(50);
  }
  done = true;
  await within('the last send', sending);

  await inbox.receives(accepted, 60_000);
  await s.server.settled('workers', 'orders', 60_000);
  const seen = new Set();
  await until('the simple consumer to have everything', async () => {
    for (const view of await simple.receive(32, 30_000)) {
      seen.add(view.body.toString());
      await simple.ack(view);
    }
    return [ ...accepted ].every(body => seen.has(body));
  }, 60_000);
  await s.server.settled('readers', 'orders');

  for (const body of accepted) {
    const attempts = inbox.of(body).map(d => d.attempt);
    assert.ok(body.endsWith('7') ? attempts.length >= 2 : attempts.length >= 1, `${body}: attempts ${attempts}`);
    assert.deepEqual(attempts, [ ...attempts ].sort((a, b) => a - b), `${body}: attempts ${attempts}`);
  }
}

scenario('a receipt handle from before a crash is good after it', {}, async s => {
  await s.server.createTopic('orders');
  const producer = await s.producer({ topics: [ 'orders' ] });
  const consumer = await s.simpleConsumer('readers', 'orders');
  await producer.send({ topic: 'orders', body: Buffer.from('only') });
  const [ view ] = await receive(consumer, 1, { invisible: 120_000 });

  await s.server.kill();
  await s.server.restart();
  await until('the ack', async () => {
    await consumer.ack(view);
    return true;
  });

  assert.equal(await s.server.open('readers', 'orders'), 0);
});

scenario('a consumer that was waiting when the server was killed is given what is sent afterwards', {}, async s => {
  await s.server.createTopic('orders');
  const inbox = await s.pushConsumer('workers', 'orders');
  const producer = await s.producer({ topics: [ 'orders' ] });
  await producer.send({ topic: 'orders', body: Buffer.from('before') });
  await inbox.receives([ 'before' ]);
  await s.server.settled('workers', 'orders');

  await s.server.kill();
  await s.server.restart();
  await s.server.command('send', 'orders', 'after');

  await inbox.receives([ 'after' ], 60_000);
  assert.deepEqual(inbox.deliveries.map(d => [ d.body, d.attempt ]), [ [ 'before', 1 ], [ 'after', 1 ] ]);
});

scenario('clients go on after their connections broke', {}, async s => {
  await s.server.createTopic('orders');
  const network = await Forwarder.start(s.server.port);
  s.onEnd(() => network.close());
  const inbox = await s.pushConsumer('workers', 'orders', undefined, { endpoints: network.endpoint });
  const producer = await s.producer({ topics: [ 'orders' ], endpoints: network.endpoint });

  for (const round of [ 'first', 'second', 'third' ]) {
    const sent = bodies(10, round);
    for (const body of sent) {
      await until('a send', () => producer.send({ topic: 'orders', body: Buffer.from(body) }));
    }
    await inbox.receives(sent);
    network.drop();
  }

  await s.server.settled('workers', 'orders');
});
