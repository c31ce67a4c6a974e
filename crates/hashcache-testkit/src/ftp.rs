//! An FTP server with files in memory, which can misbehave.
//!
//! Invariant: a command is recorded before it is answered.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// A file of the server.
#[derive(Clone, Debug)]
pub struct FtpFile {
    /// File content.
    pub content: Vec<u8>,
    /// Modification time in MDTM format: `20240102030405`.
    pub modified: &'static str,
}

/// Server fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FtpFault {
    /// No fault.
    #[default]
    None,
    /// Knows only PASV.
    NoExtendedPassive,
    /// Knows only PASV, and the reply names the address of another host.
    ForeignAddress,
    /// Names a port below 1024 in the reply to EPSV or PASV.
    LowPort,
    /// Knows neither SIZE nor MDTM nor MLSD nor REST.
    Old,
    /// Sends half of a file and reports the failure (426).
    Cut,
    /// Sends half of a file and reports success (226).
    CutSilently,
    /// As `Cut`, and without SIZE, MDTM, MLSD and REST.
    OldAndCut,
    /// Sends one byte more than SIZE has declared.
    Grown,
    /// Declares the size 0 for every file in the reply to SIZE.
    SizeZero,
    /// Sends half of a file and then nothing more.
    Hung,
    /// Does not answer RETR.
    Mute,
    /// Refuses every connection because of too many users (421).
    Busy,
    /// Does not speak FTP.
    OtherProtocol,
}

/// An FTP server on a port of 127.0.0.1; dropping it stops the server and closes all connections.
#[derive(Debug)]
pub struct FtpServer {
    address: SocketAddr,
    state: Arc<State>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    files: Mutex<BTreeMap<String, FtpFile>>,
    /// User and password; every other login is refused. `None` accepts the user `anonymous`.
    login: Option<(String, String)>,
    fault: FtpFault,
    commands: Mutex<Vec<String>>,
    sessions: watch::Sender<usize>,
}

impl FtpServer {
    /// Starts a server for anonymous users with these files, each a path and the content.
    ///
    /// # Errors
    /// If the listener cannot be bound.
    pub async fn start(files: &[(&str, &[u8])], fault: FtpFault) -> io::Result<Self> {
        Self::start_for(None, files, fault).await
    }

    /// As [`FtpServer::start`], but for one user with a password if there is a `login`.
    ///
    /// # Errors
    /// If the listener cannot be bound.
    pub async fn start_for(
        login: Option<(&str, &str)>,
        files: &[(&str, &[u8])],
        fault: FtpFault,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let files = files.iter().map(|(path, content)| {
            let file = FtpFile {
                content: content.to_vec(),
                modified: "20240102030405",
            };
            ((*path).to_owned(), file)
        });
        let state = Arc::new(State {
            files: Mutex::new(files.collect()),
            login: login.map(|(user, password)| (user.to_owned(), password.to_owned())),
            fault,
            commands: Mutex::default(),
            sessions: watch::Sender::new(0),
        });
        let kept = Arc::clone(&state);
        let task = tokio::spawn(async move {
            let mut sessions = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let state = Arc::clone(&kept);
                sessions.spawn(async move {
                    state.sessions.send_modify(|count| *count += 1);
                    // An error means that the client disconnected, which is no fault of the server.
                    let _ = Connection::new(socket, &state).serve().await;
                    state.sessions.send_modify(|count| *count -= 1);
                });
                while sessions.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            address,
            state,
            task,
        })
    }

    /// Address at which the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns an ftp URL of this server.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("ftp://{}{path}", self.address)
    }

    /// Returns all commands of all sessions so far.
    #[must_use]
    pub fn commands(&self) -> Vec<String> {
        lock(&self.state.commands).clone()
    }

    /// Counts the commands with this name.
    #[must_use]
    pub fn count(&self, name: &str) -> usize {
        let commands = lock(&self.state.commands);
        let is_named = |line: &&String| line.split(' ').next() == Some(name);
        commands.iter().filter(is_named).count()
    }

    /// Adds a file, or replaces the file at this path.
    pub fn put(&self, path: &str, file: FtpFile) {
        lock(&self.state.files).insert(path.to_owned(), file);
    }

    /// Waits until no session is open.
    pub async fn wait_for_no_session(&self) {
        let mut sessions = self.state.sessions.subscribe();
        // An error is impossible here, because this server holds the sender.
        let _ = sessions.wait_for(|count| *count == 0).await;
    }
}

impl Drop for FtpServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A control connection.
struct Connection<'a> {
    control: BufReader<TcpStream>,
    state: &'a State,
    directory: String,
    passive: Option<TcpListener>,
    restart: usize,
    user: String,
}

impl<'a> Connection<'a> {
    fn new(socket: TcpStream, state: &'a State) -> Self {
        Self {
            control: BufReader::new(socket),
            state,
            directory: String::new(),
            passive: None,
            restart: 0,
            user: String::new(),
        }
    }

    async fn serve(&mut self) -> io::Result<()> {
        match self.state.fault {
            FtpFault::Busy => return self.say("421 too many users").await,
            FtpFault::OtherProtocol => return self.say("SSH-2.0-other").await,
            _ => self.say("220-Welcome\r\n to this\r\n220 server").await?,
        }
        loop {
            let mut line = String::new();
            if self.control.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            let line = line.trim_end_matches(['\r', '\n']);
            lock(&self.state.commands).push(line.to_owned());
            let (name, argument) = line.split_once(' ').unwrap_or((line, ""));
            if name == "QUIT" {
                return self.say("221 bye").await;
            }
            self.answer(name, argument).await?;
        }
    }

    async fn say(&mut self, text: &str) -> io::Result<()> {
        let line = format!("{text}\r\n");
        self.control.get_mut().write_all(line.as_bytes()).await
    }

    fn path(&self, name: &str) -> String {
        let whole = match name.strip_prefix('/') {
            Some(rest) => rest.to_owned(),
            None => format!("{}/{name}", self.directory),
        };
        whole.trim_matches('/').to_owned()
    }

    fn file(&self, name: &str) -> Option<FtpFile> {
        lock(&self.state.files).get(&self.path(name)).cloned()
    }

    fn is_directory(&self, path: &str) -> bool {
        let files = lock(&self.state.files);
        let begin = format!("{path}/");
        path.is_empty() || files.keys().any(|name| name.starts_with(&begin))
    }

    async fn answer(&mut self, name: &str, argument: &str) -> io::Result<()> {
        let fault = self.state.fault;
        let is_old = matches!(fault, FtpFault::Old | FtpFault::OldAndCut);
        let is_passive_only = matches!(
            fault,
            FtpFault::NoExtendedPassive | FtpFault::ForeignAddress
        );
        match name {
            "USER" => {
                argument.clone_into(&mut self.user);
                self.say("331 password?").await
            }
            "PASS" => {
                let is_right = match &self.state.login {
                    None => self.user == "anonymous",
                    Some((user, password)) => self.user == *user && argument == password,
                };
                if is_right {
                    self.say("230 in").await
                } else {
                    self.say("530 Login <incorrect>").await
                }
            }
            "TYPE" => self.say("200 ok").await,
            "SIZE" | "MDTM" | "MLSD" | "REST" if is_old => self.say("502 what?").await,
            "SIZE" if self.state.fault == FtpFault::SizeZero => self.say("213 0").await,
            "SIZE" => match self.file(argument) {
                Some(file) => self.say(&format!("213 {}", file.content.len())).await,
                None => self.say("550 no such file").await,
            },
            "MDTM" => match self.file(argument) {
                Some(file) => self.say(&format!("213 {}", file.modified)).await,
                None => self.say("550 no such file").await,
            },
            "CWD" => {
                let path = self.path(argument);
                if !self.is_directory(&path) {
                    return self.say("550 no such directory").await;
                }
                self.directory = path;
                self.say("250 there").await
            }
            "EPSV" if is_passive_only => self.say("500 what?").await,
            "EPSV" | "PASV" => self.open_passive(name).await,
            "REST" => {
                self.restart = argument.parse().unwrap_or(0);
                self.say("350 from there").await
            }
            "RETR" => self.send_file(argument).await,
            "MLSD" | "LIST" => self.send_listing(name).await,
            _ => self.say("500 what?").await,
        }
    }

    async fn open_passive(&mut self, name: &str) -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = match self.state.fault {
            FtpFault::LowPort => 25,
            _ => listener.local_addr()?.port(),
        };
        self.passive = Some(listener);
        if name == "EPSV" {
            return self.say(&format!("229 Extended (|||{port}|)")).await;
        }
        let host = match self.state.fault {
            FtpFault::ForeignAddress => "192,0,2,1",
            _ => "127,0,0,1",
        };
        let (high, low) = (port / 256, port % 256);
        self.say(&format!("227 Passive ({host},{high},{low})"))
            .await
    }

    async fn accept(&mut self) -> io::Result<TcpStream> {
        let listener = self.passive.take();
        let listener = listener.ok_or_else(|| io::Error::other("no passive mode"))?;
        Ok(listener.accept().await?.0)
    }

    async fn send_file(&mut self, name: &str) -> io::Result<()> {
        let fault = self.state.fault;
        if fault == FtpFault::Mute {
            return Ok(());
        }
        let Some(file) = self.file(name) else {
            return self.say("550 no such file").await;
        };
        self.say("150 here it comes").await?;
        let mut data = self.accept().await?;
        let mut content = file.content;
        content.drain(..std::mem::take(&mut self.restart).min(content.len()));
        let half = &content[..content.len() / 2];
        match fault {
            FtpFault::Cut | FtpFault::OldAndCut => {
                data.write_all(half).await?;
                drop(data);
                self.say("426 the disk failed").await
            }
            FtpFault::CutSilently => {
                data.write_all(half).await?;
                drop(data);
                self.say("226 done").await
            }
            FtpFault::Hung => {
                data.write_all(half).await?;
                // Waits until the client disconnects.
                let mut line = String::new();
                while self.control.read_line(&mut line).await? > 0 {}
                Ok(())
            }
            _ => {
                if fault == FtpFault::Grown {
                    content.push(b'+');
                }
                data.write_all(&content).await?;
                drop(data);
                self.say("226 done").await
            }
        }
    }

    async fn send_listing(&mut self, name: &str) -> io::Result<()> {
        let begin = match self.directory.as_str() {
            "" => String::new(),
            directory => format!("{directory}/"),
        };
        let (mut text, mut directories) = (String::new(), BTreeSet::new());
        for (path, file) in &*lock(&self.state.files) {
            let Some(rest) = path.strip_prefix(&begin) else {
                continue;
            };
            let size = file.content.len();
            match rest.split_once('/') {
                Some((directory, _)) => {
                    directories.insert(directory.to_owned());
                }
                None if name == "MLSD" => {
                    let modified = file.modified;
                    text += &format!("type=file;size={size};modify={modified}; {rest}\r\n");
                }
                None => text += &format!("-rw-r--r-- 1 ftp ftp {size} Jan  2 2024 {rest}\r\n"),
            }
        }
        for directory in directories {
            text += &match name {
                "MLSD" => format!("type=dir; {directory}\r\n"),
                _ => format!("drwxr-xr-x 2 ftp ftp 4096 Jan  2 2024 {directory}\r\n"),
            };
        }
        self.say("150 here it comes").await?;
        let mut data = self.accept().await?;
        data.write_all(text.as_bytes()).await?;
        drop(data);
        match self.state.fault {
            FtpFault::Cut => self.say("426 the disk failed").await,
            _ => self.say("226 done").await,
        }
    }
}
