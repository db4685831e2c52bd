//! The conversation with the runner: a JSON object in a line, and a line of text for an
//! answer.

use std::io::{BufRead, Write};

/// Says how a scenario went.
pub fn result(scenario: &str, result: &str, reason: &str) {
    print(&[("scenario", scenario), ("result", result), ("reason", reason)]);
}

/// Asks for something about the server, and returns once it is done. It blocks.
pub fn ask(scenario: &str, what: &str) -> Result<(), String> {
    let mut answers = std::io::stdin().lock();
    print(&[("scenario", scenario), ("ask", what)]);
    let mut answer = String::new();
    answers.read_line(&mut answer).map_err(|e| e.to_string())?;
    match answer.trim() {
        "ok" => Ok(()),
        other => Err(format!("{what}: {other}")),
    }
}

fn print(fields: &[(&str, &str)]) {
    let fields: Vec<String> = fields.iter().map(|(k, v)| format!("{}:{}", quoted(k), quoted(v))).collect();
    let mut out = std::io::stdout().lock();
    // Nobody is left to tell when the runner has gone.
    let _ = writeln!(out, "{{{}}}", fields.join(","));
    let _ = out.flush();
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out + "\""
}
