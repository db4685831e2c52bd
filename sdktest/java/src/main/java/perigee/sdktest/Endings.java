package perigee.sdktest;

import static perigee.sdktest.Context.await;
import static perigee.sdktest.Context.body;

import java.time.Duration;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.producer.Producer;

/** The server ends and comes back while clients run. */
final class Endings {
    private static final int FLOW = 50;
    private static final long PAUSE_MILLIS = 20;
    /** The shortest there is: what was received when the server ended comes again after it. */
    private static final Duration INVISIBLE = Duration.ofSeconds(10);

    private Endings() {}

    static void addTo(Map<String, Scenario> all) {
        all.put("restart", c -> run(c, "kill"));
        all.put("drain", c -> run(c, "stop"));
    }

    private static void run(Context c, String end) throws Exception {
        Set<String> sent = ConcurrentHashMap.newKeySet();
        Set<String> pushed = ConcurrentHashMap.newKeySet();
        Set<String> polled = ConcurrentHashMap.newKeySet();
        AtomicInteger failures = new AtomicInteger();
        AtomicBoolean sending = new AtomicBoolean(true);
        AtomicBoolean polling = new AtomicBoolean(true);
        c.pushConsumer(view -> {
            pushed.add(body(view));
            return ConsumeResult.SUCCESS;
        });
        var consumer = c.simpleConsumer(c.configuration().build(), c.group + "-2", c.topic, FilterExpression.SUB_ALL);
        var producer = c.producer();
        var sender = new Thread(() -> send(c, producer, sending, sent, failures));
        var poller = new Thread(() -> poll(consumer, polling, polled));
        sender.start();
        poller.start();
        try {
            await("messages flow", () -> sent.size() >= FLOW && pushed.size() >= FLOW && polled.size() >= FLOW);
            int before = failures.get();
            c.ask(end);
            await("sends fail while the server is down", () -> failures.get() > before);
            c.ask("start");
            int acknowledged = sent.size();
            await("sends go on", () -> sent.size() >= acknowledged + FLOW);
            sending.set(false);
            sender.join();
            await("the push consumer has all", () -> pushed.containsAll(sent));
            await("the simple consumer has all", () -> polled.containsAll(sent));
            c.ask("settled"); // also what was sent or acknowledged without an answer
        } finally {
            sending.set(false);
            sender.join();
            polling.set(false);
            poller.join();
        }
    }

    private static void send(Context c, Producer producer, AtomicBoolean on, Set<String> sent, AtomicInteger failures) {
        for (int i = 0; on.get(); i++) {
            try {
                producer.send(c.message("message " + i).build());
                sent.add("message " + i);
            } catch (Exception e) {
                failures.incrementAndGet();
            }
            pause();
        }
    }

    private static void poll(SimpleConsumer consumer, AtomicBoolean on, Set<String> polled) {
        while (on.get()) {
            try {
                for (var view : consumer.receive(16, INVISIBLE)) {
                    polled.add(body(view)); // an ack without an answer may be one all the same
                    consumer.ack(view);
                }
            } catch (Exception e) {
                pause(); // the server is away
            }
        }
    }

    private static void pause() {
        try {
            Thread.sleep(PAUSE_MILLIS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
