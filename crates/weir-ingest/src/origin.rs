//! A worker's questions about senders and origins, and the answers. It never waits for an answer.

use weir_context::{Admission, OriginCounter, OriginQuestion, OriginTags, OriginTicket};

use crate::admission::AdmissionSettings;
use crate::counts::{ParkingCounter, SenderCounter};
use crate::ingest::Ingest;
use weir_counters::Counts;

/// A worker's question, to be answered with an [`OriginAnswer`] through [`crate::Command::Origins`].
#[derive(Debug)]
pub struct LookupRequest {
    pub worker: u16,
    pub question: Question,
}

#[derive(Debug)]
pub enum Question {
    /// Asks for the containers of these processes. Each gets an answer.
    Processes(Vec<i32>),
    /// Are these still the processes they were? Only a change is answered.
    Recheck(Vec<i32>),
    Origins(Vec<OriginQuestion>),
}

#[derive(Clone, Debug)]
pub enum OriginAnswer {
    Process {
        pid: i32,
        found: ProcessContainer,
    },
    Tags {
        ticket: OriginTicket,
        tags: OriginTags,
        /// False while a source that may know more is being asked.
        settled: bool,
        /// For a sender: whether it may send.
        admission: Admission,
    },
}

/// The identity of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessContainer {
    /// One of this container's.
    Container(Box<str>),
    /// One of no container's.
    NoContainer,
    /// Unknown to all sources.
    Unknown,
}

/// New processes, and those to look at again.
#[derive(Debug, Default)]
pub struct ProcessQuestions {
    pub new: Vec<i32>,
    pub again: Vec<i32>,
}

/// A worker's knowledge about its senders.
#[derive(Clone, Copy, Debug, Default)]
pub struct OriginStats {
    pub origins: Counts<OriginCounter>,
    pub processes: Counts<SenderCounter>,
    pub parking: Counts<ParkingCounter>,
    pub parked_bytes: u64,
    /// Memory of their rate limits, and of refused senders.
    pub rate_bytes: u64,
}

/// Takes a question without waiting. `Err(Some)`: the channel is full, and the question is returned. `Err(None)`: the resolver has ended.
pub type SendRequest = Box<dyn FnMut(LookupRequest) -> Result<(), Option<LookupRequest>> + Send>;

/// A worker's end of the conversation.
pub struct OriginLink {
    worker: u16,
    /// Senders that nothing is known of have tags too.
    pub(crate) tags_unknown: bool,
    /// Rate limit of each origin in bytes per second.
    pub(crate) rate: Option<u64>,
    pub(crate) admission: AdmissionSettings,
    send: SendRequest,
    /// Questions for which the channel was full, in order.
    unsent: std::collections::VecDeque<Question>,
}

impl OriginLink {
    /// `tags_unknown`: whether unknown senders have tags too.
    pub fn new(worker: u16, tags_unknown: bool, send: SendRequest) -> Self {
        OriginLink {
            worker,
            tags_unknown,
            rate: None,
            admission: AdmissionSettings::default(),
            send,
            unsent: Default::default(),
        }
    }

    /// Limits what each origin may send, in bytes per second.
    pub fn with_rate(mut self, bytes_per_second: Option<u64>) -> Self {
        self.rate = bytes_per_second;
        self
    }

    /// Sets the allowed senders.
    pub fn with_admission(mut self, settings: AdmissionSettings) -> Self {
        self.admission = settings;
        self
    }

    /// After each receive turn.
    pub(crate) fn turn(&mut self, ingest: &mut Ingest) {
        if ingest.has_origin_questions() || !self.unsent.is_empty() {
            self.send_requests(ingest);
        }
    }

    #[cold]
    fn send_requests(&mut self, ingest: &mut Ingest) {
        let ProcessQuestions { new, again } = ingest.take_process_questions();
        let origins = ingest.contexts_mut().take_origin_questions();
        if !new.is_empty() {
            self.unsent.push_back(Question::Processes(new));
        }
        // Nothing is lost with one of these: the next comes in two seconds.
        if !again.is_empty() && self.unsent.is_empty() {
            self.unsent.push_back(Question::Recheck(again));
        }
        if !origins.is_empty() {
            self.unsent.push_back(Question::Origins(origins));
        }
        while let Some(question) = self.unsent.pop_front() {
            let worker = self.worker;
            match (self.send)(LookupRequest { worker, question }) {
                Ok(()) => {}
                Err(Some(request)) => {
                    self.unsent.push_front(request.question);
                    return;
                }
                // The process is ending.
                Err(None) => return,
            }
        }
    }
}
