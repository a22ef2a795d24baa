//! Ping-pong over TCP or UDP, with a choice of ways to wait for packets: what the experiments and tests put into a guest to
//! see what busy polling does. It is linked statically and needs nothing of the guest.

mod arguments;
mod client;
mod latency;
mod napi;
mod server;
mod sys;
mod waiting;

use std::process::ExitCode;

use arguments::{Order, USAGE};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let order = match Order::parse(&arguments) {
        Ok(order) => order,
        Err(message) => {
            eprintln!("flownic-pingpong: {message}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let outcome = match order {
        Order::Help => {
            println!("{USAGE}");
            Ok(())
        }
        Order::Serve(service) => server::run(&service),
        Order::Ping(exchange) => client::run(&exchange).map(|report| println!("{report}")),
        Order::Napi { interface, settings } => napi::run(&interface, &settings),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("flownic-pingpong: {message}");
            ExitCode::FAILURE
        }
    }
}
