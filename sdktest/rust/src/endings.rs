//! The server ends and comes back while clients run.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::Duration;

use rocketmq::Producer;
use tokio::time::sleep;

use crate::context::{body, until, Consumer, Context, Outcome, SHORT_INVISIBLE};

const FLOW: usize = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// What was sent and consumed.
#[derive(Default)]
struct Flow {
    sent: Mutex<HashSet<String>>,
    polled: Mutex<HashSet<String>>,
    failures: AtomicUsize,
    sent_all: AtomicBool,
    ended: AtomicBool,
}

impl Flow {
    fn sent(&self) -> usize {
        self.sent.lock().unwrap().len()
    }
}

pub async fn run(c: &Context, end: &'static str) -> Outcome {
    let flow = Flow::default();
    let consumer = c.consumer().await?;
    let producer = c.producer().await?;
    let control = async {
        until("messages flow", || flow.sent() >= FLOW && flow.polled.lock().unwrap().len() >= FLOW).await?;
        let before = flow.failures.load(Ordering::SeqCst);
        c.ask(end).await?;
        until("sends fail while the server is down", || flow.failures.load(Ordering::SeqCst) > before).await?;
        c.ask("start").await?;
        let acknowledged = flow.sent();
        until("sends go on", || flow.sent() >= acknowledged + FLOW).await?;
        flow.sent_all.store(true, Ordering::SeqCst);
        until("the consumer has all", || flow.sent.lock().unwrap().is_subset(&flow.polled.lock().unwrap())).await?;
        c.ask("settled").await // also what was sent or acknowledged without an answer
    };
    let controlled = async {
        let outcome = control.await;
        flow.sent_all.store(true, Ordering::SeqCst);
        flow.ended.store(true, Ordering::SeqCst);
        outcome
    };
    let (outcome, ..) = tokio::join!(controlled, send(c, &producer, &flow), poll(&consumer, &flow));
    outcome
}

async fn send(c: &Context, producer: &Producer, flow: &Flow) {
    for i in 0.. {
        if flow.sent_all.load(Ordering::SeqCst) {
            return;
        }
        let text = format!("message {i}");
        let message = c.message(text.as_str()).build().expect("it has a topic and a body");
        match producer.send(message).await {
            Ok(_) => drop(flow.sent.lock().unwrap().insert(text)),
            Err(_) => drop(flow.failures.fetch_add(1, Ordering::SeqCst)),
        }
        sleep(PAUSE).await;
    }
}

async fn poll(consumer: &Consumer, flow: &Flow) {
    while !flow.ended.load(Ordering::SeqCst) {
        let Ok(views) = consumer.poll(16, SHORT_INVISIBLE).await else {
            sleep(PAUSE).await; // the server is away
            continue;
        };
        for view in views {
            // An ack without an answer may be one all the same; otherwise it comes again.
            flow.polled.lock().unwrap().insert(body(&view));
            let _ = consumer.ack(std::slice::from_ref(&view)).await;
        }
    }
}
