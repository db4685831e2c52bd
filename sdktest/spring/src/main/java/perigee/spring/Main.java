package perigee.spring;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.core.RocketMQClientTemplate;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;

/**
 * An application of the starter that runs scenarios: {@code Main ENDPOINT SCENARIO...}. It prints a
 * line of JSON for each.
 */
@SpringBootApplication
public class Main {
    private static final int MESSAGES = 20;
    private static final Duration INVISIBLE = Duration.ofMinutes(10);
    private static final Duration PATIENCE = Duration.ofSeconds(60);
    private static final long PAUSE_MILLIS = 50;

    public static void main(String[] args) throws Exception {
        String endpoint = args[0];
        Map<String, Object> settings = new HashMap<>(Map.of(
                "spring.main.banner-mode", "off",
                "sdktest.endpoint", endpoint,
                "rocketmq.producer.endpoints", endpoint,
                "rocketmq.producer.topic", "push-consume"));
        settings.putAll(Map.of(
                "rocketmq.simple-consumer.endpoints", endpoint,
                "rocketmq.simple-consumer.consumer-group", "simple-consume",
                "rocketmq.simple-consumer.topic", "simple-consume",
                "rocketmq.simple-consumer.await-duration", "2",
                "rocketmq.simple-consumer.filter-expression-type", "tag",
                "rocketmq.simple-consumer.tag", "*"));
        var application = new SpringApplication(Main.class);
        application.setDefaultProperties(settings);
        try (var context = application.run()) {
            var template = context.getBean(RocketMQClientTemplate.class);
            var listener = context.getBean(Listener.class);
            for (String name : Arrays.asList(args).subList(1, args.length)) {
                String wrong = switch (name) {
                    case "push-consume" -> wrong(template, name, listener::bodies);
                    case "simple-consume" -> {
                        List<String> got = new ArrayList<>();
                        yield wrong(template, name, () -> poll(template, got));
                    }
                    default -> "the program does not know it";
                };
                System.out.printf("{\"scenario\":\"%s\",\"result\":\"%s\",\"reason\":\"%s\"}%n",
                        name, wrong.isEmpty() ? "pass" : "fail", wrong.replaceAll("[^A-Za-z0-9 .,:-]", " "));
            }
        }
        System.exit(0); // some threads of the SDK outlive its clients
    }

    /** Sends messages and returns what is wrong with those that come; nothing if nothing is. */
    private static String wrong(RocketMQClientTemplate template, String topic, Supplier<List<String>> got)
            throws InterruptedException {
        List<String> want = new ArrayList<>();
        for (int i = 0; i < MESSAGES; i++) {
            want.add(String.format("message %02d", i));
            template.syncSendNormalMessage(topic, want.get(i));
        }
        long end = System.nanoTime() + PATIENCE.toNanos();
        while (got.get().size() < MESSAGES && System.nanoTime() < end) {
            Thread.sleep(PAUSE_MILLIS);
        }
        List<String> came = got.get().stream().sorted().toList();
        return came.equals(want) ? "" : "got " + came;
    }

    private static List<String> poll(RocketMQClientTemplate template, List<String> got) {
        try {
            for (MessageView view : template.receive(16, INVISIBLE)) {
                got.add(StandardCharsets.UTF_8.decode(view.getBody()).toString());
                template.ack(view);
            }
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
        return got;
    }
}
