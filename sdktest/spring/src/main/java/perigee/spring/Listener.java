package perigee.spring;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.annotation.RocketMQMessageListener;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.core.RocketMQListener;
import org.springframework.stereotype.Component;

/** A push consumer as the starter makes it from an annotation. */
@Component
@RocketMQMessageListener(
        endpoints = "${sdktest.endpoint}", topic = "push-consume", consumerGroup = "push-consume", tag = "*")
public class Listener implements RocketMQListener {
    private final Queue<String> bodies = new ConcurrentLinkedQueue<>();

    @Override
    public ConsumeResult consume(MessageView view) {
        bodies.add(StandardCharsets.UTF_8.decode(view.getBody()).toString());
        return ConsumeResult.SUCCESS;
    }

    List<String> bodies() {
        return List.copyOf(bodies);
    }
}
