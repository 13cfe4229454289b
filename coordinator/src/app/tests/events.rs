//! Readers of events that don't keep up.

use super::*;
use crate::app::events::{EventFilter, Item, Subscription};
use crate::store::{Expect, Write};

/// Changes of servers' status in one commit.
const BATCH: u128 = 10;

async fn change(app: &App, from: u128) {
    let status = json!({ "status": "running", "since": from.to_string() }).to_string();
    let put = |n| Write::put(format!("roster/{}", server(n)), Expect::Any, status.clone());
    app.ctx.parts.store.commit((from..from + BATCH).map(put).collect()).await.unwrap();
}

async fn next(reader: &mut Subscription) -> Item {
    tokio::time::timeout(Duration::from_secs(60), reader.next()).await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_falls_behind_is_told_so_and_goes_on_from_there() {
    let app = Disk::new().start().await;
    let mut slow = app.events.subscribe(EventFilter::default(), None).await.unwrap();
    let mut made = 0;
    while made < 4_500 * BATCH {
        change(&app, made).await;
        made += BATCH;
    }
    let mut seen = 0;
    let reset = loop {
        match next(&mut slow).await {
            Item::Change(_, change) => {
                assert_eq!(change.body.server(), Some(server(seen)), "in order, no gap");
                seen += 1;
            }
            Item::Reset(position, _) => break position,
            Item::Idle(_) => assert_eq!(seen, 0, "only at first"),
            Item::Progress(_) => panic!("nothing runs"),
        }
    };
    assert!(seen < made, "what is held for a reader is bounded");
    change(&app, made).await;
    let Item::Change(position, change) = next(&mut slow).await else { panic!("no change") };
    assert!(position > reset);
    assert_eq!(change.body.server(), Some(server(made)));
    app.shutdown().await;
}
