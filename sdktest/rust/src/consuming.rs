//! Receiving, filters, and messages that fail. This SDK has simple consumers alone, which
//! fail at a message when they do not acknowledge it.

use std::collections::HashMap;

use rocketmq::model::common::{FilterExpression, FilterType};

use crate::context::{body, equal, sorted, Context, Outcome, SHORT_INVISIBLE};

const MESSAGES: usize = 100;

pub async fn simple(c: &Context) -> Outcome {
    let producer = c.producer().await?;
    let sent: Vec<String> = (0..MESSAGES).map(|i| format!("message {i}")).collect();
    for text in &sent {
        producer.send(c.message(text.as_str()).build()?).await?;
    }
    let consumer = c.consumer().await?;
    let got = consumer.receive(MESSAGES).await?;
    equal(sorted(sent), sorted(got.iter().map(body)))?;
    consumer.ack(&got).await?;
    consumer.nothing().await
}

pub async fn tag_filter(c: &Context) -> Outcome {
    filtered(c, FilterExpression::new(FilterType::Tag, "red || green")).await
}

pub async fn sql_filter(c: &Context) -> Outcome {
    filtered(c, FilterExpression::new(FilterType::Sql, "size > 5 AND color IN ('red', 'green')")).await
}

/// The filter wants what is red or green; size goes with the color.
async fn filtered(c: &Context, filter: FilterExpression) -> Outcome {
    let producer = c.producer().await?;
    for color in ["red", "blue", "green", "redgreen", "red"] {
        let properties = HashMap::from([("color", color), ("size", "7")]);
        producer.send(c.message(color).set_tag(color).set_properties(properties).build()?).await?;
    }
    producer.send(c.message("none").set_properties(HashMap::from([("size", "7")])).build()?).await?;
    let mut consumer = c.consumer().await?;
    consumer.filter = filter;
    let got = consumer.receive(3).await?;
    equal(vec!["green".to_string(), "red".to_string(), "red".to_string()], sorted(got.iter().map(body)))?;
    consumer.ack(&got).await?;
    consumer.nothing().await
}

pub async fn retry(c: &Context) -> Outcome {
    let consumer = c.consumer().await?;
    c.producer().await?.send(c.message("second time lucky").build()?).await?;
    let first = consumer.receive_for(1, SHORT_INVISIBLE).await?;
    equal(1, first[0].delivery_attempt())?;
    let again = consumer.receive(1).await?;
    equal(first[0].message_id(), again[0].message_id())?;
    equal(2, again[0].delivery_attempt())?;
    consumer.ack(&again).await
}

pub async fn dead_letter(c: &Context) -> Outcome {
    let consumer = c.consumer().await?;
    let receipt = c.producer().await?.send(c.message("poison").build()?).await?;
    for attempt in [1, 2] {
        let got = consumer.receive_for(1, SHORT_INVISIBLE).await?;
        equal(attempt, got[0].delivery_attempt())?;
    }
    let letters = c.dead_letters(1).await?;
    equal("poison".to_string(), body(&letters[0]))?;
    equal(receipt.message_id(), letters[0].message_id())
}
