// Waiting for conditions: everything that may never come has a deadline, and
// says what it waited for when that passes.

import { setTimeout as pause } from 'node:timers/promises';

/** How long a test waits for what should come within seconds. */
export const PATIENCE = 30_000;

/**
 * Calls look until it returns something truthy, and returns that. What look
 * throws counts as "not yet".
 */
export async function until(what, look, patience = PATIENCE) {
  const deadline = Date.now() + patience;
  let last;
  do {
    try {
      const found = await look();
      if (found) return found;
      last = undefined;
    } catch (err) {
      last = err;
    }
    await pause(50);
  } while (Date.now() < deadline);
  throw new Error(`waited ${patience} ms in vain for ${what}`, { cause: last });
}

/** Returns what the promise does, or throws when that takes longer than patience. */
export async function within(what, promise, patience = PATIENCE) {
  const over = new AbortController();
  const expired = pause(patience, undefined, { signal: over.signal }).then(
    () => { throw new Error(`waited ${patience} ms in vain for ${what}`); },
    () => {},
  );
  try {
    return await Promise.race([promise, expired]);
  } finally {
    over.abort();
  }
}
