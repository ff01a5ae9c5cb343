//! What every page has around it, and the types of what handlers return.

use askama::Template;
use axum::response::{Html, Redirect};

use crate::{error::AppError, render::render, session::User, state::App};

/// A page or a part of one.
pub type Page = Result<Html<String>, AppError>;
/// A change. The browser goes on to the page that shows it.
pub type Changed = Result<Redirect, AppError>;

pub fn html(template: &impl Template) -> Page {
    Ok(Html(render(template)?))
}

pub fn go_to(path: &str) -> Changed {
    Ok(Redirect::to(path))
}

/// The head, the menu, and what keeps the page live.
#[derive(Clone, Debug)]
pub struct Shell {
    pub user: User,
    pub section: &'static str,
    pub pending: i64,
    pub stale: bool,
    /// The live view of the page, as a query of `/live`; empty if it has none.
    pub live: String,
}

impl Shell {
    pub fn new(app: &App, user: User, section: &'static str) -> Self {
        let news = app.news.borrow();
        Self {
            user,
            section,
            pending: news.pending,
            stale: news.stale,
            live: String::new(),
        }
    }

    pub fn live(mut self, query: impl Into<String>) -> Self {
        self.live = query.into();
        self
    }
}
