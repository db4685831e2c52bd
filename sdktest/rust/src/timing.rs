//! Delayed messages, half messages and how they end.

use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use rocketmq::model::message::MessageBuilder;
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::Producer;

use crate::context::{body, check, equal, until, Context, Outcome};

const DELAY_SECONDS: u64 = 3;

/// The SDK knows whole seconds alone.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_secs()
}

pub async fn delay(c: &Context) -> Outcome {
    let consumer = c.consumer().await?;
    let due = now() + DELAY_SECONDS;
    c.producer().await?.send(c.message("later").set_delivery_timestamp(due as i64).build()?).await?;
    let got = consumer.receive(1).await?;
    check(now() >= due, "it came early")?;
    equal(Some(due as i64), got[0].delivery_timestamp())?;
    consumer.ack(&got).await
}

async fn half(c: &Context, producer: &Producer, text: &str) -> Outcome<impl Transaction> {
    let message = MessageBuilder::transaction_message_builder(&c.name, text.into()).build()?;
    Ok(producer.send_transaction_message(message).await?)
}

/// Takes the one message that is there, which must have that body.
async fn only(c: &Context, want: &str) -> Outcome {
    let consumer = c.consumer().await?;
    let got = consumer.receive(1).await?;
    equal(want.to_string(), body(&got[0]))?;
    consumer.ack(&got).await
}

pub async fn commit(c: &Context) -> Outcome {
    let producer = c.transaction_producer(Box::new(|_, _| TransactionResolution::UNKNOWN)).await?;
    let transaction = half(c, &producer, "committed").await?;
    c.consumer().await?.nothing().await?;
    transaction.commit().await?;
    only(c, "committed").await
}

pub async fn rollback(c: &Context) -> Outcome {
    let producer = c.transaction_producer(Box::new(|_, _| TransactionResolution::UNKNOWN)).await?;
    half(c, &producer, "rolled back").await?.rollback().await?;
    half(c, &producer, "committed").await?.commit().await?;
    only(c, "committed").await
}

pub async fn check_left(c: &Context) -> Outcome {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let producer = c
        .transaction_producer(Box::new(move |_, view| {
            let text = body(&view);
            let good = text == "left, good";
            seen.lock().unwrap().push(text);
            if good {
                TransactionResolution::COMMIT
            } else {
                TransactionResolution::ROLLBACK
            }
        }))
        .await?;
    half(c, &producer, "left, bad").await?;
    half(c, &producer, "left, good").await?;
    only(c, "left, good").await?;
    until("both are asked about", || asked.lock().unwrap().iter().any(|text| text == "left, bad")).await
}
