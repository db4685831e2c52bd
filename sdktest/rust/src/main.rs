//! Runs scenarios against the server at an endpoint: `sdktest ENDPOINT SCENARIO...`.
//! It prints a line of JSON for each, and asks the runner in the same way to end and
//! start the server.

mod basics;
mod consuming;
mod context;
mod endings;
mod lines;
mod ordering;
mod timing;

use std::sync::Arc;

use tokio::sync::Semaphore;

use context::{Context, Failure, Outcome};

/// How many scenarios run at the same time. They mostly wait.
const AT_ONCE: usize = 6;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let endpoint = arguments.next().expect("an endpoint");
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = Vec::new();
    for name in arguments {
        let (endpoint, places) = (endpoint.clone(), Arc::clone(&places));
        running.push(tokio::spawn(async move {
            let _place = places.acquire().await.expect("the semaphore stays open");
            // In a task of its own, which takes a panic with it.
            let context = Context::new(&endpoint, &name);
            let ran = tokio::spawn(async move {
                let outcome = run(&context).await;
                context.close().await;
                outcome
            });
            match ran.await {
                Ok(Ok(())) => lines::result(&name, "pass", ""),
                Ok(Err(Failure::OfTheSDK(reason))) => lines::result(&name, "fault", &reason),
                Ok(Err(Failure::Otherwise(reason))) => lines::result(&name, "fail", &reason),
                Err(panic) => lines::result(&name, "fail", &panic.to_string()),
            }
        }));
    }
    for task in running {
        task.await.expect("it catches panics");
    }
}

async fn run(c: &Context) -> Outcome {
    match c.name.as_str() {
        "start" => basics::start(c).await,
        "cleartext" => basics::round_trip(c, c.options()).await,
        "tls" => basics::tls(c).await,
        "credentials" => basics::credentials(c).await,
        "send-normal" => basics::send_normal(c).await,
        "send-batch" => basics::send_batch(c).await,
        "send-fifo" => ordering::send_fifo(c).await,
        "oversized" => basics::oversized(c).await,
        "bad-input" => basics::bad_input(c).await,
        "simple-consume" => consuming::simple(c).await,
        "tag-filter" => consuming::tag_filter(c).await,
        "sql-filter" => consuming::sql_filter(c).await,
        "retry" => consuming::retry(c).await,
        "dead-letter" => consuming::dead_letter(c).await,
        "fifo-order" => ordering::fifo_order(c).await,
        "fifo-dead-letter" => ordering::fifo_dead_letter(c).await,
        "delay" => timing::delay(c).await,
        "transaction-commit" => timing::commit(c).await,
        "transaction-rollback" => timing::rollback(c).await,
        "transaction-check" => timing::check_left(c).await,
        "restart" => endings::run(c, "kill").await,
        "drain" => endings::run(c, "stop").await,
        name => Err(Failure::Otherwise(format!("the program does not know {name}"))),
    }
}
