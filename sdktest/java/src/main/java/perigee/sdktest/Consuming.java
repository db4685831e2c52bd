package perigee.sdktest;

import static perigee.sdktest.Context.ack;
import static perigee.sdktest.Context.await;
import static perigee.sdktest.Context.bodies;
import static perigee.sdktest.Context.body;
import static perigee.sdktest.Context.check;
import static perigee.sdktest.Context.equal;
import static perigee.sdktest.Context.receive;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.message.MessageView;

/** Consumers of both kinds, filters, failures and leases. */
final class Consuming {
    private static final int MESSAGES = 100;
    /** Longer than a lease of the server under test, which the server renews. */
    private static final Duration LONG_WORK = Duration.ofSeconds(14);

    private Consuming() {}

    static void addTo(Map<String, Scenario> all) {
        all.put("simple-consume", Consuming::simple);
        all.put("push-consume", Consuming::push);
        all.put("tag-filter", c -> filtered(c, new FilterExpression("red || green")));
        all.put("sql-filter", c -> filtered(c, new FilterExpression("size > 5 AND color IN ('red', 'green')", FilterExpressionType.SQL92)));
        all.put("retry", Consuming::retry);
        all.put("change-invisible", Consuming::changeInvisible);
        all.put("dead-letter", Consuming::deadLetter);
        all.put("auto-renewal", Consuming::autoRenewal);
    }

    private static List<String> send(Context c, int n) throws Exception {
        var producer = c.producer();
        List<String> sent = IntStream.range(0, n).mapToObj(i -> "message " + i).toList();
        for (String body : sent) {
            producer.send(c.message(body).build());
        }
        return sent;
    }

    private static List<String> sorted(Iterable<String> texts) {
        List<String> all = new ArrayList<>();
        texts.forEach(all::add);
        all.sort(null);
        return all;
    }

    private static void simple(Context c) throws Exception {
        var sent = send(c, MESSAGES);
        var consumer = c.simpleConsumer();
        var got = receive(consumer, sent.size());
        equal(sorted(sent), sorted(bodies(got)));
        ack(consumer, got);
        equal(List.of(), consumer.receive(16, Context.LONG_INVISIBLE));
    }

    private static void push(Context c) throws Exception {
        Queue<String> got = new ConcurrentLinkedQueue<>();
        c.pushConsumer(view -> {
            got.add(body(view));
            return ConsumeResult.SUCCESS;
        });
        var sent = send(c, MESSAGES);
        await("every message", () -> got.size() >= sent.size());
        equal(sorted(sent), sorted(got));
    }

    /** The filter wants what is red or green; size goes with the color. */
    private static void filtered(Context c, FilterExpression filter) throws Exception {
        var producer = c.producer();
        for (String color : List.of("red", "blue", "green", "redgreen", "red")) {
            producer.send(c.message(color).setTag(color).addProperty("color", color).addProperty("size", "7").build());
        }
        producer.send(c.message("none").addProperty("size", "7").build());
        Queue<String> got = new ConcurrentLinkedQueue<>();
        c.pushConsumer(filter, view -> {
            got.add(body(view));
            return ConsumeResult.SUCCESS;
        });
        await("what was asked for", () -> got.size() >= 3);
        equal(List.of("green", "red", "red"), sorted(got));
    }

    private static void retry(Context c) throws Exception {
        Queue<Integer> attempts = new ConcurrentLinkedQueue<>();
        Queue<Long> times = new ConcurrentLinkedQueue<>();
        c.pushConsumer(view -> {
            attempts.add(view.getDeliveryAttempt());
            times.add(System.nanoTime());
            return view.getDeliveryAttempt() < 3 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        });
        c.producer().send(c.message("third time lucky").build());
        await("three attempts", () -> attempts.size() >= 3);
        equal(List.of(1, 2, 3), List.copyOf(attempts));
        var at = List.copyOf(times);
        check(at.get(2) - at.get(0) > Duration.ofMillis(1500).toNanos(), "the retries came without their delays");
    }

    private static void changeInvisible(Context c) throws Exception {
        send(c, 2);
        var consumer = c.simpleConsumer();
        var got = receive(consumer, 2);
        MessageView given = got.get(0);
        consumer.changeInvisibleDuration(got.get(1), Context.LONG_INVISIBLE);
        consumer.changeInvisibleDuration(given, Duration.ofSeconds(1));
        var again = receive(consumer, 1);
        equal(body(given), body(again.get(0)));
        equal(2, again.get(0).getDeliveryAttempt());
        ack(consumer, again);
        consumer.ack(got.get(1)); // with the handle that the change has returned
    }

    private static void deadLetter(Context c) throws Exception {
        AtomicInteger deliveries = new AtomicInteger();
        c.pushConsumer(view -> {
            deliveries.incrementAndGet();
            return ConsumeResult.FAILURE;
        });
        var receipt = c.producer().send(c.message("poison").build());
        var readers = c.simpleConsumer(c.configuration().build(), c.group + "-readers", "%DLQ%" + c.group, FilterExpression.SUB_ALL);
        var letters = receive(readers, 1);
        equal("poison", body(letters.get(0)));
        equal(receipt.getMessageId(), letters.get(0).getMessageId());
        equal(2, deliveries.get());
        ack(readers, letters);
    }

    private static void autoRenewal(Context c) throws Exception {
        AtomicInteger started = new AtomicInteger();
        AtomicInteger finished = new AtomicInteger();
        c.pushConsumer(view -> {
            started.incrementAndGet();
            try {
                Thread.sleep(LONG_WORK.toMillis());
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                return ConsumeResult.FAILURE;
            }
            finished.incrementAndGet();
            return ConsumeResult.SUCCESS;
        });
        c.producer().send(c.message("long work").build());
        await("the work is done", () -> finished.get() > 0);
        equal(1, started.get());
    }
}
