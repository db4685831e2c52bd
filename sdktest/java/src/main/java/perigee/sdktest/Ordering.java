package perigee.sdktest;

import static perigee.sdktest.Context.ack;
import static perigee.sdktest.Context.await;
import static perigee.sdktest.Context.bodies;
import static perigee.sdktest.Context.body;
import static perigee.sdktest.Context.check;
import static perigee.sdktest.Context.equal;
import static perigee.sdktest.Context.receive;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.function.Predicate;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.message.MessageView;

/** Message groups, priorities and lite topics: what comes in an order. */
final class Ordering {
    private static final List<String> GROUPS = List.of("ann", "ben", "cat");
    private static final int EACH = 8;

    private Ordering() {}

    static void addTo(Map<String, Scenario> all) {
        all.put("fifo-order", Ordering::fifoOrder);
        all.put("fifo-dead-letter", Ordering::fifoDeadLetter);
        all.put("priority", Ordering::priority);
        all.put("lite", Ordering::lite);
    }

    /** Works through messages in their groups; a message for which fails holds fails. */
    private static Map<String, Queue<String>> consume(Context c, Predicate<MessageView> fails) throws Exception {
        Map<String, Queue<String>> done = new ConcurrentHashMap<>();
        c.pushConsumer(view -> {
            if (fails.test(view)) {
                return ConsumeResult.FAILURE;
            }
            done.computeIfAbsent(view.getMessageGroup().orElse(""), g -> new ConcurrentLinkedQueue<>()).add(body(view));
            return ConsumeResult.SUCCESS;
        });
        return done;
    }

    private static void sendGroups(Context c) throws Exception {
        var producer = c.producer();
        for (int i = 0; i < EACH; i++) {
            for (String group : GROUPS) {
                producer.send(c.message(group + " " + i).setMessageGroup(group).build());
            }
        }
    }

    private static void inOrder(Map<String, Queue<String>> done, String without) throws Exception {
        int expected = GROUPS.size() * EACH - (without.isEmpty() ? 0 : 1);
        await("everything consumed", () -> done.values().stream().mapToInt(Queue::size).sum() >= expected);
        for (String group : GROUPS) {
            List<String> want = new ArrayList<>();
            for (int i = 0; i < EACH; i++) {
                want.add(group + " " + i);
            }
            want.remove(without);
            equal(want, List.copyOf(done.get(group)));
        }
    }

    private static void fifoOrder(Context c) throws Exception {
        Set<String> failed = ConcurrentHashMap.newKeySet();
        sendGroups(c);
        inOrder(consume(c, view -> body(view).endsWith("3") && failed.add(body(view))), "");
        equal(GROUPS.size(), failed.size());
    }

    private static void fifoDeadLetter(Context c) throws Exception {
        sendGroups(c);
        var done = consume(c, view -> body(view).equals("ben 2"));
        inOrder(done, "ben 2");
        var readers = c.simpleConsumer(c.configuration().build(), c.group + "-readers", "%DLQ%" + c.group, FilterExpression.SUB_ALL);
        var letters = receive(readers, 1);
        equal("ben 2", body(letters.get(0)));
        ack(readers, letters);
    }

    private static void priority(Context c) throws Exception {
        var producer = c.producer();
        int[] priorities = {0, 2, 1, 9, 3};
        for (int p : priorities) {
            producer.send(c.message("priority " + p).setPriority(p).build());
        }
        var consumer = c.simpleConsumer();
        var got = receive(consumer, priorities.length);
        equal(List.of("priority 9", "priority 3", "priority 2", "priority 1", "priority 0"), bodies(got));
        equal(9, got.get(0).getPriority().orElse(-1));
        ack(consumer, got);
    }

    private static void lite(Context c) throws Exception {
        Queue<String> got = new ConcurrentLinkedQueue<>();
        var consumer = c.owned(c.sdk.newLitePushConsumerBuilder().setClientConfiguration(c.configuration().build())
                .setConsumerGroup(c.group).bindTopic(c.topic).setMessageListener(view -> {
                    got.add(view.getLiteTopic().orElse("") + " " + body(view));
                    return ConsumeResult.SUCCESS;
                }).build());
        consumer.subscribeLite("mine");
        var producer = c.producer();
        List<String> want = new ArrayList<>();
        for (int i = 0; i < EACH; i++) {
            producer.send(c.message("" + i).setLiteTopic("others").build());
            producer.send(c.message("" + i).setLiteTopic("mine").build());
            want.add("mine " + i);
        }
        await("everything consumed", () -> got.size() >= EACH);
        equal(want, List.copyOf(got));
        consumer.unsubscribeLite("mine");
        check(consumer.getLiteTopicSet().isEmpty(), "still subscribed");
    }
}
