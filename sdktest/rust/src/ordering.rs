//! Message groups: what comes in an order.

use std::collections::{HashMap, HashSet};

use tokio::time::{timeout, Duration};

use crate::context::{body, equal, Context, Failure, Outcome, SHORT_INVISIBLE};

const GROUPS: [&str; 3] = ["ann", "ben", "cat"];
const EACH: usize = 6;
/// Failed messages come again after ten seconds each.
const PATIENCE: Duration = Duration::from_secs(120);

pub async fn send_fifo(c: &Context) -> Outcome {
    let consumer = c.consumer().await?;
    c.producer().await?.send(c.message("ordered").set_message_group("customer").build()?).await?;
    let got = consumer.receive(1).await?;
    equal(Some("customer"), got[0].message_group())?;
    consumer.ack(&got).await
}

async fn send_groups(c: &Context) -> Outcome {
    let producer = c.producer().await?;
    for i in 0..EACH {
        for group in GROUPS {
            producer.send(c.message(format!("{group} {i}")).set_message_group(group).build()?).await?;
        }
    }
    Ok(())
}

/// Works through all messages but one. A message for which fails holds is not
/// acknowledged.
async fn work(c: &Context, without: &str, mut fails: impl FnMut(&str) -> bool) -> Outcome {
    let consumer = c.consumer().await?;
    let mut want: HashMap<String, Vec<String>> = HashMap::new();
    for group in GROUPS {
        let bodies = (0..EACH).map(|i| format!("{group} {i}")).filter(|text| text != without);
        want.insert(group.into(), bodies.collect());
    }
    let expected: usize = want.values().map(Vec::len).sum();
    let working = async {
        let mut done: HashMap<String, Vec<String>> = HashMap::new();
        while done.values().map(Vec::len).sum::<usize>() < expected {
            // One at a time: the attempts of what waits behind a failed one would count too.
            for view in consumer.poll(1, SHORT_INVISIBLE).await? {
                if fails(&body(&view)) {
                    continue;
                }
                let group = view.message_group().unwrap_or_default().to_string();
                consumer.ack(std::slice::from_ref(&view)).await?;
                done.entry(group).or_default().push(body(&view));
            }
        }
        Ok::<_, Failure>(done)
    };
    let done = timeout(PATIENCE, working).await.map_err(|_| format!("not worked through within {PATIENCE:?}"))??;
    equal(want, done)
}

pub async fn fifo_order(c: &Context) -> Outcome {
    send_groups(c).await?;
    let mut failed = HashSet::new();
    work(c, "", |text| text.ends_with('3') && failed.insert(text.to_string())).await?;
    equal(GROUPS.len(), failed.len())
}

pub async fn fifo_dead_letter(c: &Context) -> Outcome {
    send_groups(c).await?;
    work(c, "ben 2", |text| text == "ben 2").await?;
    let letters = c.dead_letters(1).await?;
    equal("ben 2".to_string(), body(&letters[0]))
}
