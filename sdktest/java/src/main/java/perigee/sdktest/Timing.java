package perigee.sdktest;

import static perigee.sdktest.Context.ack;
import static perigee.sdktest.Context.body;
import static perigee.sdktest.Context.check;
import static perigee.sdktest.Context.equal;
import static perigee.sdktest.Context.receive;
import static perigee.sdktest.Context.refused;

import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.apis.producer.SendReceipt;

/** Delayed messages. */
final class Timing {
    private static final long DELAY_MILLIS = 3000;

    private Timing() {}

    static void addTo(Map<String, Scenario> all) {
        all.put("delay", Timing::delay);
        all.put("recall", Timing::recall);
    }

    private static void delay(Context c) throws Exception {
        var consumer = c.simpleConsumer();
        long due = System.currentTimeMillis() + DELAY_MILLIS;
        c.producer().send(c.message("later").setDeliveryTimestamp(due).build());
        var got = receive(consumer, 1);
        check(System.currentTimeMillis() >= due, "it came early");
        equal(due, got.get(0).getDeliveryTimestamp().orElse(0L));
        ack(consumer, got);
    }

    private static void recall(Context c) throws Exception {
        var producer = c.producer();
        long due = System.currentTimeMillis() + DELAY_MILLIS;
        SendReceipt recalled = producer.send(c.message("recalled").setDeliveryTimestamp(due).build());
        producer.send(c.message("comes").setDeliveryTimestamp(due + 500).build());
        equal(recalled.getMessageId(), producer.recallMessage(c.topic, recalled.getRecallHandle()).getMessageId());
        refused("a handle that is none", () -> producer.recallMessage(c.topic, "nonsense"));
        var consumer = c.simpleConsumer();
        var got = receive(consumer, 1);
        equal("comes", body(got.get(0)));
        ack(consumer, got);
        equal(List.of(), consumer.receive(16, Context.LONG_INVISIBLE));
    }
}
