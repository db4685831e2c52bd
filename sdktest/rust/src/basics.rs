//! Starting, sending, and what is refused.

use std::collections::HashMap;
use std::time::Duration;

use rocketmq::conf::ClientOption;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::Producer;
use tokio::time::timeout;

use crate::context::{body, check, equal, refused, sorted, Context, Failure, Outcome, LONG_INVISIBLE};

/// The largest body that the server takes, unless it is told otherwise.
const MAX_BODY: usize = 4 << 20;
/// What fits into the largest message that this SDK receives, which counts the rest of it too.
const MAX_RECEIVED: usize = MAX_BODY - 4096;
const STOP_LIMIT: Duration = Duration::from_secs(30);

pub async fn start(c: &Context) -> Outcome {
    c.producer().await?;
    c.consumer().await?;
    timeout(STOP_LIMIT, c.close()).await.map_err(|_| Failure::from("the clients took long to stop".to_string()))
}

pub async fn round_trip(c: &Context, options: ClientOption) -> Outcome {
    let consumer = c.consumer_of(&c.name, &c.name, options.clone()).await?;
    c.producer_with(options).await?.send(c.message("there and back").build()?).await?;
    let got = consumer.receive(1).await?;
    equal("there and back".to_string(), body(&got[0]))?;
    consumer.ack(&got).await
}

/// The certificate is checked against the name in the endpoint.
pub async fn tls(c: &Context) -> Outcome {
    let mut options = c.options();
    options.set_access_url(c.local_name());
    options.set_enable_tls(true);
    round_trip(c, options).await
}

pub async fn credentials(c: &Context) -> Outcome {
    let mut options = c.options();
    options.set_access_key("key");
    options.set_secret_key("secret");
    round_trip(c, options).await
}

pub async fn send_normal(c: &Context) -> Outcome {
    let consumer = c.consumer().await?;
    let properties = HashMap::from([("color", "green"), ("size", "7")]);
    let message = c.message("as it was sent").set_tag("tag").set_keys(vec!["one", "two"]).set_properties(properties);
    let receipt = c.producer().await?.send(message.build()?).await?;
    let got = consumer.receive(1).await?;
    let view = &got[0];
    equal("as it was sent".to_string(), body(view))?;
    equal(receipt.message_id(), view.message_id())?;
    equal(Some("tag"), view.tag())?;
    equal(vec!["one", "two"], view.keys().iter().map(String::as_str).collect())?;
    equal(Some("green"), view.properties().get("color").map(String::as_str))?;
    equal(Some("7"), view.properties().get("size").map(String::as_str))?;
    equal(c.name.as_str(), view.topic())?;
    equal(1, view.delivery_attempt())?;
    check(!view.born_host().is_empty() && view.born_timestamp() > 0, "no born host or time")?;
    consumer.ack(&got).await
}

pub async fn send_batch(c: &Context) -> Outcome {
    let sent: Vec<String> = (0..10).map(|i| format!("message {i}")).collect();
    let messages = sent.iter().map(|text| c.message(text.as_str()).build()).collect::<Result<Vec<_>, _>>()?;
    let receipts = c.producer().await?.batch_send(messages).await?;
    equal(sent.len(), receipts.len())?;
    let consumer = c.consumer().await?;
    let got = consumer.receive(sent.len()).await?;
    equal(sent, sorted(got.iter().map(body)))?;
    let ids = |texts: Vec<&str>| sorted(texts.into_iter().map(String::from));
    equal(ids(receipts.iter().map(|r| r.message_id()).collect()), ids(got.iter().map(|v| v.message_id()).collect()))?;
    consumer.ack(&got).await
}

pub async fn oversized(c: &Context) -> Outcome {
    let producer = c.producer().await?;
    let text = refused("a body above the limit", send(&producer, c.message(vec![b'x'; MAX_BODY + 1]))).await?;
    check(text.contains("MessageBodyTooLarge") || text.contains("MESSAGE_BODY_TOO_LARGE"), text)?;
    let consumer = c.consumer().await?;
    producer.send(c.message(vec![b'x'; MAX_RECEIVED]).build()?).await?;
    let got = consumer.receive(1).await?;
    equal(MAX_RECEIVED, got[0].body().len())?;
    consumer.ack(&got).await
}

pub async fn bad_input(c: &Context) -> Outcome {
    let producer = c.producer().await?;
    let lost = c.message("lost").set_topic("nowhere");
    let text = refused("a send to a topic that does not exist", send(&producer, lost)).await?;
    check(text.contains("nowhere"), format!("the topic is not named: {text}"))?;
    refused("an empty body", send(&producer, c.message(""))).await?;
    refused("a tag with a bar", send(&producer, c.message("body").set_tag("a|b"))).await?;
    let mut consumer = c.consumer().await?;
    consumer.filter = FilterExpression::new(FilterType::Sql, "color = = 'red'");
    refused("a filter that is no SQL", consumer.poll(1, LONG_INVISIBLE)).await?;
    send(&producer, c.message("the producer goes on")).await
}

async fn send(producer: &Producer, message: MessageBuilder) -> Outcome {
    producer.send(message.build()?).await?;
    Ok(())
}
