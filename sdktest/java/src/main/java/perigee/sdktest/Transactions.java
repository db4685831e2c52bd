package perigee.sdktest;

import static perigee.sdktest.Context.ack;
import static perigee.sdktest.Context.body;
import static perigee.sdktest.Context.equal;
import static perigee.sdktest.Context.receive;

import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** Half messages and how they end. */
final class Transactions {
    private Transactions() {}

    static void addTo(Map<String, Scenario> all) {
        all.put("transaction-commit", Transactions::commit);
        all.put("transaction-rollback", Transactions::rollback);
        all.put("transaction-check", Transactions::check);
    }

    private static Transaction half(Context c, Producer producer, String body) throws Exception {
        Transaction transaction = producer.beginTransaction();
        producer.send(c.message(body).build(), transaction);
        return transaction;
    }

    /** Takes the one message that is there, which must have that body. */
    private static void only(Context c, String want) throws Exception {
        var consumer = c.simpleConsumer();
        var got = receive(consumer, 1);
        equal(want, body(got.get(0)));
        ack(consumer, got);
    }

    private static void commit(Context c) throws Exception {
        var producer = c.transactionProducer(view -> TransactionResolution.UNKNOWN);
        Transaction transaction = half(c, producer, "committed");
        Context.check(c.simpleConsumer().receive(16, Context.LONG_INVISIBLE).isEmpty(), "a half message was received");
        transaction.commit();
        only(c, "committed");
    }

    private static void rollback(Context c) throws Exception {
        var producer = c.transactionProducer(view -> TransactionResolution.UNKNOWN);
        half(c, producer, "rolled back").rollback();
        half(c, producer, "committed").commit();
        only(c, "committed");
    }

    private static void check(Context c) throws Exception {
        Queue<String> asked = new ConcurrentLinkedQueue<>();
        var producer = c.transactionProducer(view -> {
            asked.add(body(view));
            return body(view).equals("left, good") ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
        });
        half(c, producer, "left, bad");
        half(c, producer, "left, good");
        only(c, "left, good");
        Context.await("both are asked about", () -> asked.contains("left, bad"));
    }
}
