//! What a scenario has: a topic and a group of its own, both called as it is, and
//! clients that end with it.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::TransactionChecker;
use rocketmq::{Producer, SimpleConsumer};
use tokio::time::{sleep, timeout};

use crate::lines;

/// How long anything that is waited for may take. It says nothing about speed.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const LONG_INVISIBLE: Duration = Duration::from_secs(600);
/// The shortest that a message may be hidden.
pub const SHORT_INVISIBLE: Duration = Duration::from_secs(10);
/// Of a call. The SDK's own three seconds can be short on a machine that has much to do.
const TIMEOUT: Duration = Duration::from_secs(15);
const AWAIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);
const BATCH: i32 = 16;

/// Why a scenario did not pass.
#[derive(Debug)]
pub enum Failure {
    /// The SDK was seen to do what it should not.
    OfTheSDK(String),
    Otherwise(String),
}

pub type Outcome<T = ()> = Result<T, Failure>;

impl From<ClientError> for Failure {
    fn from(e: ClientError) -> Self {
        Failure::Otherwise(told(&e))
    }
}

/// The error in a line, with its source and without a backtrace.
pub fn told(e: &ClientError) -> String {
    let source = e.source().map(|s| format!("{s:#}")).unwrap_or_default();
    format!("{}: {:?} {source}", e.message(), e.context())
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Failure::Otherwise(text)
    }
}

pub struct Context {
    pub name: String,
    endpoint: String,
    producers: Mutex<Vec<Arc<Producer>>>,
    consumers: Mutex<Vec<Arc<SimpleConsumer>>>,
}

impl Context {
    pub fn new(endpoint: &str, name: &str) -> Self {
        Context {
            name: name.into(),
            endpoint: endpoint.into(),
            producers: Mutex::default(),
            consumers: Mutex::default(),
        }
    }

    /// Ends the clients, as far as the scenario has not ended them and holds none.
    pub async fn close(&self) {
        let producers = std::mem::take(&mut *self.producers.lock().unwrap());
        let consumers = std::mem::take(&mut *self.consumers.lock().unwrap());
        for producer in producers.into_iter().filter_map(|p| Arc::try_unwrap(p).ok()) {
            let _ = producer.shutdown().await; // the scenario is over
        }
        for consumer in consumers.into_iter().filter_map(|c| Arc::try_unwrap(c).ok()) {
            let _ = consumer.shutdown().await;
        }
    }

    /// What a client without TLS is configured with.
    pub fn options(&self) -> ClientOption {
        let mut options = ClientOption::default();
        options.set_access_url(&self.endpoint);
        options.set_enable_tls(false);
        options.set_timeout(TIMEOUT);
        options.set_long_polling_timeout(AWAIT);
        options
    }

    /// The server's endpoint with the name that its certificate has.
    pub fn local_name(&self) -> String {
        self.endpoint.replace("127.0.0.1", "localhost")
    }

    fn producer_options(&self) -> ProducerOption {
        let mut options = ProducerOption::default();
        options.set_topics(vec![&self.name]);
        options
    }

    pub async fn producer(&self) -> Outcome<Arc<Producer>> {
        self.producer_with(self.options()).await
    }

    pub async fn producer_with(&self, options: ClientOption) -> Outcome<Arc<Producer>> {
        self.start(Producer::new(self.producer_options(), options)?).await
    }

    pub async fn transaction_producer(&self, checker: Box<TransactionChecker>) -> Outcome<Arc<Producer>> {
        self.start(Producer::new_transaction_producer(self.producer_options(), self.options(), checker)?).await
    }

    async fn start(&self, mut producer: Producer) -> Outcome<Arc<Producer>> {
        producer.start().await?;
        let producer = Arc::new(producer);
        self.producers.lock().unwrap().push(Arc::clone(&producer));
        Ok(producer)
    }

    pub async fn consumer(&self) -> Outcome<Consumer> {
        self.consumer_of(&self.name, &self.name, self.options()).await
    }

    pub async fn consumer_of(&self, group: &str, topic: &str, client: ClientOption) -> Outcome<Consumer> {
        let mut options = SimpleConsumerOption::default();
        options.set_consumer_group(group);
        options.set_topics(vec![topic]);
        let mut consumer = SimpleConsumer::new(options, client)?;
        consumer.start().await?;
        let sdk = Arc::new(consumer);
        self.consumers.lock().unwrap().push(Arc::clone(&sdk));
        Ok(Consumer { sdk, topic: topic.into(), filter: FilterExpression::new(FilterType::Tag, "*") })
    }

    /// Takes what is in the dead-letter topic of the group, which must be n messages.
    pub async fn dead_letters(&self, n: usize) -> Outcome<Vec<MessageView>> {
        let (readers, topic) = (format!("{}-readers", self.name), format!("%DLQ%{}", self.name));
        let consumer = self.consumer_of(&readers, &topic, self.options()).await?;
        let letters = consumer.receive(n).await?;
        consumer.ack(&letters).await?;
        Ok(letters)
    }

    pub fn message(&self, body: impl Into<Vec<u8>>) -> MessageBuilder {
        MessageBuilder::builder().set_topic(&self.name).set_body(body.into())
    }

    /// Asks the runner to kill, stop or start the server, or to wait until all is settled.
    pub async fn ask(&self, what: &'static str) -> Outcome {
        let name = self.name.clone();
        let asked = tokio::task::spawn_blocking(move || lines::ask(&name, what)).await;
        asked.map_err(|e| e.to_string())?.map_err(Failure::from)
    }
}

/// A simple consumer of one topic.
pub struct Consumer {
    sdk: Arc<SimpleConsumer>,
    topic: String,
    pub filter: FilterExpression,
}

impl Consumer {
    /// Receives once. There may be nothing.
    pub async fn poll(&self, batch: i32, invisible: Duration) -> Outcome<Vec<MessageView>> {
        Ok(self.sdk.receive_with(&self.topic, &self.filter, batch, invisible).await?)
    }

    /// Receives until n messages are there. Nothing is acknowledged.
    pub async fn receive(&self, n: usize) -> Outcome<Vec<MessageView>> {
        self.receive_for(n, LONG_INVISIBLE).await
    }

    /// Does so with another invisible duration.
    pub async fn receive_for(&self, n: usize, invisible: Duration) -> Outcome<Vec<MessageView>> {
        let receiving = async {
            let mut got = Vec::new();
            while got.len() < n {
                got.extend(self.poll(BATCH, invisible).await?);
            }
            Ok::<_, Failure>(got)
        };
        let got =
            timeout(PATIENCE, receiving).await.map_err(|_| format!("{n} messages: not within {PATIENCE:?}"))??;
        equal(n, got.len())?;
        Ok(got)
    }

    /// Checks that there is nothing to receive.
    pub async fn nothing(&self) -> Outcome {
        equal(0, self.poll(BATCH, LONG_INVISIBLE).await?.len())
    }

    pub async fn ack(&self, views: &[MessageView]) -> Outcome {
        for view in views {
            self.sdk.ack(view).await?;
        }
        Ok(())
    }
}

pub fn body(view: &MessageView) -> String {
    String::from_utf8_lossy(view.body()).into_owned()
}

pub fn sorted(texts: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut all: Vec<String> = texts.into_iter().collect();
    all.sort();
    all
}

/// Waits until a condition holds.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) -> Outcome {
    let waiting = async {
        while !holds() {
            sleep(PAUSE).await;
        }
    };
    timeout(PATIENCE, waiting).await.map_err(|_| Failure::from(format!("{what}: not within {PATIENCE:?}")))
}

pub fn check(holds: bool, otherwise: impl Into<String>) -> Outcome {
    if holds {
        return Ok(());
    }
    Err(Failure::from(otherwise.into()))
}

pub fn equal<T: PartialEq + std::fmt::Debug>(want: T, got: T) -> Outcome {
    check(want == got, format!("got {got:?} instead of {want:?}"))
}

/// Returns the text of the error of the work, which must come soon and say something.
pub async fn refused<T>(what: &str, work: impl Future<Output = Outcome<T>>) -> Outcome<String> {
    match timeout(PATIENCE, work).await {
        Err(_) => Err(Failure::from(format!("{what}: no answer within {PATIENCE:?}"))),
        Ok(Ok(_)) => Err(Failure::from(format!("{what} was taken"))),
        Ok(Err(Failure::Otherwise(text) | Failure::OfTheSDK(text))) => Ok(text),
    }
}
