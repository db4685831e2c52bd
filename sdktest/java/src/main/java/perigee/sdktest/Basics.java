package perigee.sdktest;

import static perigee.sdktest.Context.ack;
import static perigee.sdktest.Context.body;
import static perigee.sdktest.Context.check;
import static perigee.sdktest.Context.equal;
import static perigee.sdktest.Context.receive;
import static perigee.sdktest.Context.refused;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;

/** Starting, sending, and what is refused. */
final class Basics {
    /** The largest body that the server takes, unless it is told otherwise. */
    private static final int MAX_BODY = 4 << 20;
    private static final Duration STOP_LIMIT = Duration.ofSeconds(30);

    private Basics() {}

    static void addTo(Map<String, Scenario> all) {
        all.put("start", Basics::start);
        all.put("cleartext", c -> roundTrip(c, c.configuration().build()));
        all.put("tls", c -> roundTrip(c, c.configuration().enableSsl(true).build()));
        all.put("credentials", c -> roundTrip(c, c.configuration()
                .setCredentialProvider(new StaticSessionCredentialsProvider("key", "secret")).build()));
        all.put("send-normal", Basics::sendNormal);
        all.put("send-fifo", Basics::sendFifo);
        all.put("oversized", Basics::oversized);
        all.put("bad-input", Basics::badInput);
    }

    private static void start(Context c) throws Exception {
        c.producer();
        c.simpleConsumer();
        c.pushConsumer(view -> ConsumeResult.SUCCESS);
        long began = System.nanoTime();
        c.close();
        check(System.nanoTime() - began < STOP_LIMIT.toNanos(), "the clients took long to stop");
    }

    private static void roundTrip(Context c, ClientConfiguration configuration) throws Exception {
        var consumer = c.simpleConsumer(configuration, c.group, c.topic, FilterExpression.SUB_ALL);
        c.producer(configuration).send(c.message("there and back").build());
        var got = receive(consumer, 1);
        equal("there and back", body(got.get(0)));
        ack(consumer, got);
    }

    private static void sendNormal(Context c) throws Exception {
        var consumer = c.simpleConsumer();
        SendReceipt receipt = c.producer().send(c.message("as it was sent").setTag("tag").setKeys("one", "two")
                .addProperty("color", "green").addProperty("size", "7").build());
        var got = receive(consumer, 1);
        var view = got.get(0);
        equal("as it was sent", body(view));
        equal(receipt.getMessageId(), view.getMessageId());
        equal("tag", view.getTag().orElse(""));
        equal(List.of("one", "two"), List.copyOf(view.getKeys()));
        equal("green", view.getProperties().get("color"));
        equal("7", view.getProperties().get("size"));
        equal(c.topic, view.getTopic());
        equal(1, view.getDeliveryAttempt());
        if (Boolean.getBoolean("sdktest.traced")) {
            check(view.getProperties().containsKey("traceparent"), "the agent's trace has not come with the message");
        }
        check(!view.getBornHost().isEmpty() && view.getBornTimestamp() > 0, "no born host or time");
        ack(consumer, got);
    }

    private static void sendFifo(Context c) throws Exception {
        var consumer = c.simpleConsumer();
        c.producer().send(c.message("ordered").setMessageGroup("customer").build());
        var got = receive(consumer, 1);
        equal("customer", got.get(0).getMessageGroup().orElse(""));
        ack(consumer, got);
    }

    private static void oversized(Context c) throws Exception {
        Producer producer = c.producer();
        refused("a body above the limit",
                () -> producer.send(c.sdk.newMessageBuilder().setTopic(c.topic).setBody(new byte[MAX_BODY + 1]).build()));
        var consumer = c.simpleConsumer();
        producer.send(c.sdk.newMessageBuilder().setTopic(c.topic).setBody(new byte[MAX_BODY]).build());
        var got = receive(consumer, 1);
        equal(MAX_BODY, got.get(0).getBody().remaining());
        ack(consumer, got);
    }

    private static void badInput(Context c) throws Exception {
        Producer producer = c.producer();
        Exception e = refused("a send to a topic that does not exist", () -> producer.send(
                c.sdk.newMessageBuilder().setTopic("nowhere").setBody(new byte[1]).build()));
        check(e.getMessage().contains("nowhere"), "the topic is not named: " + e.getMessage());
        refused("an empty body", () -> producer.send(c.message("").build()));
        refused("a tag with a bar", () -> producer.send(c.message("body").setTag("a|b").build()));
        var wrong = new FilterExpression("color = = 'red'", FilterExpressionType.SQL92);
        refused("a filter that is no SQL", () -> c.simpleConsumer(c.configuration().build(), c.group, c.topic, wrong)
                .receive(1, Context.LONG_INVISIBLE));
        producer.send(c.message("the producer goes on").build());
    }
}
