package perigee.sdktest;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.TransactionChecker;

/**
 * What a scenario has: a topic and a group of its own, both called as it is, and clients that end
 * with it.
 */
final class Context implements AutoCloseable {
    static final Duration LONG_INVISIBLE = Duration.ofMinutes(10);
    /** How long anything that is waited for may take. It says nothing about speed. */
    static final Duration PATIENCE = Duration.ofSeconds(60);

    /** Of a call. The SDK's own three seconds can be short on a machine that has much to do. */
    private static final Duration TIMEOUT = Duration.ofSeconds(15);
    private static final Duration AWAIT = Duration.ofSeconds(2);
    private static final long PAUSE_MILLIS = 50;

    final String topic;
    final String group;
    final ClientServiceProvider sdk = ClientServiceProvider.loadService();

    private final String endpoint;
    private final Deque<AutoCloseable> clients = new ArrayDeque<>();

    Context(String endpoint, String name) {
        this.endpoint = endpoint;
        this.topic = name;
        this.group = name;
    }

    /** What a client without TLS is configured with. */
    ClientConfigurationBuilder configuration() {
        return ClientConfiguration.newBuilder().setEndpoints(endpoint).setRequestTimeout(TIMEOUT).enableSsl(false);
    }

    Producer producer() throws ClientException {
        return producer(configuration().build());
    }

    Producer producer(ClientConfiguration configuration) throws ClientException {
        return owned(sdk.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build());
    }

    Producer transactionProducer(TransactionChecker checker) throws ClientException {
        return owned(sdk.newProducerBuilder().setClientConfiguration(configuration().build()).setTopics(topic)
                .setTransactionChecker(checker).build());
    }

    SimpleConsumer simpleConsumer() throws ClientException {
        return simpleConsumer(configuration().build(), group, topic, FilterExpression.SUB_ALL);
    }

    SimpleConsumer simpleConsumer(ClientConfiguration configuration, String group, String topic, FilterExpression filter)
            throws ClientException {
        return owned(sdk.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
                .setAwaitDuration(AWAIT).setSubscriptionExpressions(Map.of(topic, filter)).build());
    }

    void pushConsumer(MessageListener listener) throws ClientException {
        pushConsumer(FilterExpression.SUB_ALL, listener);
    }

    void pushConsumer(FilterExpression filter, MessageListener listener) throws ClientException {
        owned(sdk.newPushConsumerBuilder().setClientConfiguration(configuration().build()).setConsumerGroup(group)
                .setSubscriptionExpressions(Map.of(topic, filter)).setMessageListener(listener).build());
    }

    /** Registers a client to be closed with the scenario. */
    <C extends AutoCloseable> C owned(C client) {
        clients.push(client);
        return client;
    }

    MessageBuilder message(String body) {
        return sdk.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    /** Asks the runner to kill, stop or start the server, or to wait until the groups have settled all. */
    void ask(String what) throws Exception {
        Lines.ask(topic, what);
    }

    /** Receives until n messages are there. Nothing is acknowledged. */
    static List<MessageView> receive(SimpleConsumer consumer, int n) throws Exception {
        List<MessageView> got = new ArrayList<>();
        await(n + " messages", () -> {
            got.addAll(consumer.receive(16, LONG_INVISIBLE));
            return got.size() >= n;
        });
        check(got.size() == n, got.size() + " messages instead of " + n);
        return got;
    }

    static void ack(SimpleConsumer consumer, List<MessageView> views) throws ClientException {
        for (MessageView view : views) {
            consumer.ack(view);
        }
    }

    static String body(MessageView view) {
        return StandardCharsets.UTF_8.decode(view.getBody()).toString();
    }

    static List<String> bodies(List<MessageView> views) {
        return views.stream().map(Context::body).toList();
    }

    /** Waits until a condition holds. */
    static void await(String what, Callable<Boolean> holds) throws Exception {
        long end = System.nanoTime() + PATIENCE.toNanos();
        while (!holds.call()) {
            check(System.nanoTime() < end, what + ": not within " + PATIENCE.toSeconds() + " s");
            Thread.sleep(PAUSE_MILLIS);
        }
    }

    static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }

    static void equal(Object want, Object got) {
        check(want.equals(got), "got " + got + " instead of " + want);
    }

    /** Returns what the work throws, which must come soon and say something. */
    static Exception refused(String what, Callable<?> work) {
        long began = System.nanoTime();
        try {
            work.call();
        } catch (Exception e) {
            check(System.nanoTime() - began < PATIENCE.toNanos(), what + " was refused, but late");
            check(e.getMessage() != null && !e.getMessage().isBlank(), what + " was refused without a word");
            return e;
        }
        throw new AssertionError(what + " was taken");
    }

    @Override
    public void close() throws Exception {
        while (!clients.isEmpty()) {
            clients.pop().close();
        }
    }
}
