//! The terminal of `weir top`: set up at the start and restored at the end, in every case.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{SystemTime, UNIX_EPOCH};

use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{
    self, DisableMouseCapture, EnableMouseCapture, Event, KeyEventKind, MouseEventKind,
};
use ratatui::crossterm::execute;
use tokio::signal::unix::{SignalKind, signal};

use super::data::{ScreenRequest, poll};
use super::state::{Next, TopState};
use super::{ScreenEvent, draw};
use weir_system::failure::Failure;

/// Shows the agent at this address until a key or a signal ends it.
pub fn run(address: SocketAddr) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::runtime(format!("the terminal cannot be used: {error}"));
    let (sender, events) = channel();
    // Before the terminal is changed: a signal restores it.
    watch_signals(sender.clone()).map_err(failed)?;
    end_on_panic();
    // From here on a panic restores the terminal before it prints its message.
    let mut terminal = ratatui::try_init().map_err(failed)?;
    // A terminal without a mouse ignores it.
    let _ = execute!(io::stdout(), EnableMouseCapture);
    let (requests, wanted) = channel();
    let for_answers = sender.clone();
    std::thread::spawn(move || poll(address, wanted, for_answers));
    std::thread::spawn(move || read_keys(&sender));
    let ended = show(&mut terminal, &events, &requests);
    let _ = execute!(io::stdout(), DisableMouseCapture);
    ratatui::restore();
    ended.map_err(failed)
}

/// A panic of any thread ends the program; otherwise the screen would freeze.
fn end_on_panic() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let _ = execute!(io::stdout(), DisableMouseCapture, Show);
        default(panic);
        std::process::exit(101);
    }));
}

fn show(
    terminal: &mut DefaultTerminal,
    events: &Receiver<ScreenEvent>,
    requests: &Sender<ScreenRequest>,
) -> io::Result<()> {
    let mut state = TopState::default();
    let mut asked = ScreenRequest::default();
    loop {
        terminal.draw(|frame| draw::draw(&mut state, unix_now(), frame))?;
        // The requests depend on the number of rows, which drawing determines.
        let wanted = state.wanted();
        if wanted != asked {
            let _ = requests.send(wanted.clone());
            asked = wanted;
        }
        let Ok(screen_event) = events.recv() else {
            return Ok(());
        };
        // Several simultaneous events are drawn once.
        for screen_event in std::iter::once(screen_event).chain(events.try_iter()) {
            match screen_event {
                ScreenEvent::End => return Ok(()),
                ScreenEvent::Typed(key) if state.key(key) == Next::End => return Ok(()),
                ScreenEvent::Typed(_) | ScreenEvent::Resized => {}
                ScreenEvent::Pointed(mouse) => state.mouse(mouse),
                ScreenEvent::Answered(answered) => state.take(*answered),
            }
        }
    }
}

/// Ends with the terminal.
fn read_keys(events: &Sender<ScreenEvent>) {
    loop {
        let screen_event = match event::read() {
            Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => ScreenEvent::Typed(key),
            Ok(Event::Mouse(mouse)) if !matches!(mouse.kind, MouseEventKind::Moved) => {
                ScreenEvent::Pointed(mouse)
            }
            Ok(Event::Resize(..)) => ScreenEvent::Resized,
            Ok(_) => continue,
            Err(_) => ScreenEvent::End,
        };
        let is_end = matches!(screen_event, ScreenEvent::End);
        if events.send(screen_event).is_err() || is_end {
            return;
        }
    }
}

fn watch_signals(events: Sender<ScreenEvent>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let kinds = [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
    ];
    let [mut terminate, mut interrupt, mut hangup] = {
        let _inside = runtime.enter();
        let [terminate, interrupt, hangup] = kinds.map(signal);
        [terminate?, interrupt?, hangup?]
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hangup.recv() => {}
            }
        });
        let _ = events.send(ScreenEvent::End);
    });
    Ok(())
}

fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
